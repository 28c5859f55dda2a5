# SPDX-License-Identifier: Apache-2.0
"""A learning switch for os-ken and Ryu, with OpenFlow 1.3.

A flow of priority 0 sends frames to the controller. The controller notes the port of
each source address, and adds a flow of priority 1 for each pair of known addresses.
"""

try:
    from os_ken.base import app_manager
    from os_ken.controller import ofp_event
    from os_ken.controller.handler import CONFIG_DISPATCHER, MAIN_DISPATCHER, set_ev_cls
    from os_ken.lib.packet import ethernet, packet
    from os_ken.ofproto import ofproto_v1_3
    App = app_manager.OSKenApp
except ImportError:
    from ryu.base import app_manager
    from ryu.controller import ofp_event
    from ryu.controller.handler import CONFIG_DISPATCHER, MAIN_DISPATCHER, set_ev_cls
    from ryu.lib.packet import ethernet, packet
    from ryu.ofproto import ofproto_v1_3
    App = app_manager.RyuApp


class Learning(App):
    OFP_VERSIONS = [ofproto_v1_3.OFP_VERSION]

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.ports = {}  # (datapath id, MAC address) -> port

    def add_flow(self, datapath, priority, match, out):
        parser, ofproto = datapath.ofproto_parser, datapath.ofproto
        actions = [parser.OFPActionOutput(out, ofproto.OFPCML_NO_BUFFER)]
        apply_actions = parser.OFPInstructionActions(ofproto.OFPIT_APPLY_ACTIONS, actions)
        datapath.send_msg(parser.OFPFlowMod(datapath=datapath, priority=priority, match=match,
                                            instructions=[apply_actions]))

    @set_ev_cls(ofp_event.EventOFPSwitchFeatures, CONFIG_DISPATCHER)
    def connected(self, event):
        datapath = event.msg.datapath
        self.add_flow(datapath, 0, datapath.ofproto_parser.OFPMatch(), datapath.ofproto.OFPP_CONTROLLER)

    @set_ev_cls(ofp_event.EventOFPPacketIn, MAIN_DISPATCHER)
    def packet_in(self, event):
        msg = event.msg
        datapath, in_port = msg.datapath, msg.match['in_port']
        parser, ofproto = datapath.ofproto_parser, datapath.ofproto
        eth = packet.Packet(msg.data).get_protocol(ethernet.ethernet)
        self.ports[datapath.id, eth.src] = in_port
        out = self.ports.get((datapath.id, eth.dst), ofproto.OFPP_FLOOD)
        if out != ofproto.OFPP_FLOOD:
            self.add_flow(datapath, 1, parser.OFPMatch(in_port=in_port, eth_src=eth.src, eth_dst=eth.dst), out)
        datapath.send_msg(parser.OFPPacketOut(datapath=datapath, buffer_id=ofproto.OFP_NO_BUFFER, in_port=in_port,
                                              actions=[parser.OFPActionOutput(out)], data=msg.data))

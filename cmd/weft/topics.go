// SPDX-License-Identifier: Apache-2.0

package main

import (
	"github.com/spf13/cobra"

	"weft/cmd/manpage"
)

// topics returns the help topics, such as "weft help flows". Each is also a manual page in section 7.
func topics() []*cobra.Command {
	return []*cobra.Command{
		{Use: "ports", Short: "types of ports and their options", Long: portsHelp},
		{Use: "flows", Short: "flows, groups and meters", Long: flowsHelp},
	}
}

const flowsHelp = flowSyntax + `
Examples:

  weft add-flow actions=normal
  weft add-flow table=0,priority=100,in_port=vm1,ip,nw_dst=10.0.0.0/24,actions=output:overlay
  weft add-flow "priority=200,tcp,tp_dst=22,ct_state=-trk,actions=ct(table=1)"
  weft add-flow "table=1,ct_state=+trk+new,tcp,actions=ct(commit),normal"
  weft --bundle add-flows flows.txt
  weft replace-flows flows.txt

A file has one flow in each line; # begins a comment. The whole file is applied, or nothing of
it. A line may begin with its operation: add, modify, modify_strict, delete or delete_strict.

` + groupHelp + `

` + meterHelp + `

docs/openflow.md of the source lists the differences from Open vSwitch.`

const groupHelp = `A group is group_id=N,type=TYPE,bucket=...[,bucket=...]. A flow names it as group:N. Types:

  all       every bucket gets a copy of the frame
  select    one bucket, by the hash of the connection and the buckets' weights (weight=N)
  indirect  its only bucket
  ff        the first bucket whose watch_port or watch_group is up

A bucket has actions=..., for example

  weft add-group group_id=1,type=select,bucket=weight=2,actions=vm1,bucket=actions=vm2`

const meterHelp = `A meter is meter=N,kbps|pktps[,burst][,stats],bands=BAND[,BAND...]. A flow names it as meter:N
before its other actions. A band is type=drop,rate=R[,burst_size=B], which drops the frames
beyond its rate, or type=dscp_remark,rate=R[,burst_size=B][,prec_level=1..3], which raises their
drop precedence (RFC 2597). With kbps, R is in kilobits per second and B in kilobits. With
pktps, R is in frames per second and B in frames. Without burst, B is one second of R.

  weft add-meter meter=1,kbps,burst,bands=type=drop,rate=10000,burst_size=1000
  weft add-flow in_port=vm1,actions=meter:1,normal`

const portsHelp = portSyntax + `

vhost-user: a virtual machine or container, over a unix socket.

  path=SOCKET       absolute path of the socket, at most 107 bytes
  mode=server       the switch makes the socket (default); client: the front end makes it
  queues=N          pairs of queues that the front end may use (default 1)
  mtu=N             the MTU in bytes that the guest is offered; QEMU needs host_mtu=N, too
  offloads=off      no segmentation and checksum offloads are offered
  socket-owner=USER, socket-group=GROUP, socket-mode=OCTAL
                    owner and mode of a socket that the switch makes; libvirt needs
                    socket-owner=libvirt-qemu, or socket-group=kvm socket-mode=0660

tap: a device of the kernel, for example for a container.

  dev=NAME          name of the device (default: the port's name)
  netns=NAME        network namespace, of ip netns
  mac=MAC           MAC address of the device (default: chosen by the kernel)
  mtu=N             MTU of the device in bytes (default: the kernel's)
  queues=N          queues of the device (default 1)
  offloads=off      no segmentation and checksum offloads

uplink: a device that carries tunnels. The switch uses AF_XDP if the driver supports zero-copy,
packet sockets otherwise. weft show prints the choice and the reason.

  dev=NETDEV        the device
  queues=N          its queues: 1 to 64 (default: all with AF_XDP, 1 packet socket otherwise)

patch: leads to a patch port of another bridge. Both ports name each other. It has no device.

  peer=PORT         the port at the other end

local: the port LOCAL of flows, a device of the host itself. A bridge has at most one. The device
has the port's name; options are those of a tap.

af_xdp: an uplink through AF_XDP. The kernel keeps the device; only datagrams of the switch's
own tunnels are redirected.

  dev=NETDEV        the device
  queues=N          number of the device's queues that are served, from the first (default: all)
  mode=auto         the best of zerocopy, copy and generic that the driver allows, or one of these
  channels=N        sets the device's number of queues
  rss=served        RSS distributes to the served queues only
  busy_poll=US      the worker's system calls serve the device instead of interrupts
  replace=on        detaches another program's XDP program first

af_packet: an uplink through packet sockets, for devices on which AF_XDP has to copy.

  dev=NETDEV        the device
  queues=N          number of packet sockets, 1 to 64 (default 1)

device: a network device of the host as a port of the bridge. All its frames arrive at the
port and none at the host's stack, so the device should have no IP address.

  dev=NETDEV        the device (default: the port's name)
  queues=N          number of packet sockets, 1 to 64 (default 1)

vxlan, vxlan-gpe, geneve, gre, erspan: a tunnel to one or more tunnel endpoints (VTEPs) through
the uplinks. Ports of two of the first three types need different UDP ports. gre and erspan
have none.

  vni=N|flow        the network; flow: set_tunnel of a flow sets it
  remote=           IP addresses of VTEPs, a multicast group (with dev=), or flow: tun_dst of a
                    flow sets it
  local=IP          the address to send from and receive at (default: by the route)
  key=N|flow        gre: the key, 0 to 16777215; flow: set_tunnel of a flow sets it, with 32 bits
                    (default: no key is sent, and key 0 received); erspan: the session, 0 to 1023
  csum=on           gre: a checksum over header and payload
  seq=on            gre: sequence numbers; each worker counts on its own
  erspan_ver=1|2    erspan: version of the header to send, type II or III (default 1)
  erspan_idx=N      erspan version 1: the index, of 20 bits
  erspan_dir=0|1, erspan_hwid=N
                    erspan version 2: direction, and hardware ID of 6 bits
  dst_port=N        UDP port of the remotes (default 4789; vxlan-gpe 4790; geneve 6081)
  src_port=LOW-HIGH range of the hashed source port (default 49152-65535)
  udp_csum=on|off   outer UDP checksum (default: on over IPv6, off over IPv4)
  ttl=N|inherit     TTL or hop limit (default 64; 1 to a multicast group)
  tos=N|inherit     outer TOS, whose upper six bits are the DSCP: a multiple of 4 (default 0)
  df=on|off         the IPv4 bit Don't Fragment (default off)
  learning=off      learns no addresses from the port's frames
  answers=off       requests of ARP and neighbour discovery go to the remotes instead of being
                    answered by the switch
  split_horizon=off frames of other tunnels are flooded to this one, as Open vSwitch does
  reserved=         what happens to reserved bits of the VXLAN header: ignore (default), refuse,
                    gbp or gpe (type=vxlan only)
  gbp=on            group policies: flows match and set tun_gbp_id and tun_gbp_flags (type=vxlan
                    only)
  bfd=on            runs BFD with each remote; a silent remote is down for groups, too. The remote
                    needs bfd=on, or bfd:enable=true of Open vSwitch
  bfd_min_tx=MS     interval of BFD packets, from 50 (default 200)
  bfd_min_rx=MS     shortest interval of the remote's BFD packets, from 50 (default 200)
  bfd_mult=N        packets that the remote must miss before the port is down there (default 4)
  bfd_one_hop=on    takes BFD packets only from the same network (outer TTL 255, RFC 5082)
  bfd_auth=TYPE     authenticates BFD packets: keyed-sha1 or meticulous-keyed-sha1 (RFC 5880)
  bfd_key_file=PATH file with the key, of 1 to 20 bytes, without access for others
  bfd_key_id=N      number of the key, 0 to 255 (default 1)

bond: one port of several members, for two or more cables to one switch, or to two. The members
are ports with bond=NAME: type=device, or type=tap. actions=normal takes them as one port, with
the VLANs of the bond; flows see a member as in_port.

  bond_mode=active-backup
                    (default) frames are sent and taken on one member only, the active one
  bond_mode=balance-slb
                    each source MAC address with its VLAN has a member
  bond_primary=PORT the member that is active whenever its link is up
  bond_updelay=MS, bond_downdelay=MS
                    how long a link must be up, or down, before it counts (default 0)
  bond_mode=balance-tcp
                    each connection has a member; needs LACP
  lacp=active|passive|off
                    LACP with the switch at the other end (IEEE 802.1AX; default off): only members
                    whose partner agrees carry frames. They must be of type=device
  lacp_time=fast|slow
                    a silent partner is lost after 3 or 90 seconds (default slow)
  lacp_fallback_ab=on
                    without a partner, the bond is an active-backup one
  lacp_system_id=MAC, lacp_system_priority=N
                    name and priority of this switch (default: MAC address of a member, 65535)
  lacp_port_id=N, lacp_port_priority=N, lacp_aggregation_key=N
                    of a member (default: number of the port, 65535, number of the bond)

mirror: copies of frames of its bridge, for an analyser. It is not a port for flows; its counters
are those of the copies. An output gets one copy of a frame, from the first mirror by name that
selects it. A copy has the tags that actions=normal would send to the output.

  output_port=PORT  the port that gets the copies; it has no other traffic
  output_vlan=N     instead: the copies are sent to all ports of this VLAN
  select_all=on     all frames that arrive at the bridge or are sent
  select_src_port=PORT[,...], select_dst_port=PORT[,...]
                    frames that arrive on these ports, or that are sent to them
  select_vlan=N[-N][,...]
                    of them only the frames of these VLANs
  snaplen=N         copies have at most so many bytes, 14 to 65535

ipfix: an exporter of the frames of its bridge, or of the action sample, to collectors of IPFIX over
UDP. It is not a port for flows.

  targets=IP:PORT[,...]
                    the collectors, at most 8
  sampling=N        one of N frames is sampled (default 400)
  input=off, output=off
                    no frames that enter the bridge, or that leave it
  collector_set=N   instead: the frames of sample(collector_set_id=N), with its probability and its
                    obs_domain_id and obs_point_id
  obs_domain_id=N, obs_point_id=N
                    what the records say about the observation (default 0)
  cache_active_timeout=S, cache_max_flows=N
                    frames of one flow are one record after S seconds, or when there are more than
                    N flows (default 0 for either: each sampled frame is a record)
  template_interval=S
                    templates are sent again after S seconds (default 600)
  tunnels=off       no tunnel fields of frames from tunnels
  virtual_obs_id=TEXT
                    a name of the observation in each record

sflow: an exporter of sFlow version 5, with counters of the bridge's ports.

  targets=IP:PORT[,...], sampling=N
                    as for ipfix
  header=N          bytes of a sampled frame, up to 1024 (default 128)
  polling=S         the counters of the ports are sent every S seconds (default 30; 0: never)
  agent=IP|NETDEV   address of the agent, or the device that has it (default: the address from
                    which the first collector is reached)

Bridge of a port of any type except uplink, af_xdp and af_packet:

  bridge=NAME       a bridge of add-br (default: the first bridge)

All types but uplinks, mirrors and exporters:

  ofport_request=N  the port's number in flows, up to 65279 (default: the last number of a port
                    of this name, otherwise the lowest number that no port of the bridge has had)
  admin=down        the port neither takes frames nor sends any; flows drop them as port-off
  flood=off         normal and flood do not flood to the port

All types but uplinks, bonds, mirrors, exporters and patch:

  qos=QUEUE:RATE[:BURST][,...]
                    queues of the port: RATE in bits per second and BURST in bits, with k, M
                    or G (default of BURST: 0.1 s of RATE, at least 525k). Frames beyond the
                    rate are dropped as queue. Frames of other queues, and frames without a
                    queue, belong to queue 0
  ingress_policing_rate=KBPS, ingress_policing_burst=KBIT
                    rate in kilobits per second, and burst in kilobits, of the frames that
                    the port sends to the switch (default burst: 8000); frames beyond the
                    rate are dropped as policed
  ingress_policing_kpkts_rate=N, ingress_policing_kpkts_burst=N
                    the same in thousands of frames (default burst: 16)

All types but uplinks, bonds, mirrors, exporters, patch and tunnels:

  weight=N          share of a busy worker's time, from 1 (default) to 100: beside ports that
                    want as much time as they can get, a port of weight 3 gets three times
                    that of a port of weight 1. WORKER of weft top shows the present parts

VLANs of a port under actions=normal, as in ovs-vswitchd.conf.db(5):

  tag=N             VLAN of an access, native or dot1q-tunnel port
  trunks=N[-N][,...]
                    VLANs of a trunk or native port (default: all)
  vlan_mode=        access (default with tag=): frames without a tag, which are in VLAN tag=
                    trunk (default): frames with the tags of trunks=
                    native-tagged, native-untagged: as trunk, but frames without a tag are in
                    VLAN tag=, and are sent with or without its tag
                    dot1q-tunnel: every frame gets a second tag, of VLAN tag=
  cvlans=N[-N][,...]
                    customer VLANs of a dot1q-tunnel port (default: all)
  qinq-ethtype=     the second tag is of 802.1ad (default) or 802.1q

Examples:

  weft add-port vm1 type=vhost-user path=/run/weft/vm1.sock vni=100
  weft add-port rack type=tap tag=5
  weft add-port sw0 type=local
  weft add-port patch-tun type=patch peer=patch-int bridge=br-int
  weft add-port tap0 type=tap
  weft add-port bond0 type=bond bond_primary=eth1
  weft add-port eth1 type=device bond=bond0
  weft add-port eth2 type=device bond=bond0
  weft add-port copies type=mirror select_src_port=vm1 output_port=tap0
  weft add-port ct1 type=tap netns=ct1 dev=eth0 mac=02:00:00:00:00:02
  weft add-port uplink type=uplink dev=eth0
  weft add-port overlay type=vxlan vni=100 remote=172.16.0.2,172.16.0.3`

const weftText = `weft is the client of weftd(8) and of weft-central(8). It manages ports and flows, shows their
statistics, traces and captures frames, and declares networks for a fleet of hosts.

A verb stands behind its object: weft flow add, weft vport del, weft ct list. The words of
ovs-ofctl(8), ovs-vsctl(8), ovs-dpctl(8) and ovs-appctl(8) for the same, such as weft add-flow, stay
valid.

Tables are for people. With --json every verb prints JSON for programs. An error is one line on
standard error.`

// manPages returns the manual pages of weft: one for weft with all its commands, and one for each help
// topic.
func manPages(root *cobra.Command) []manpage.Page {
	pages := []manpage.Page{{
		Name: "weft", Section: 8, Summary: root.Short, Root: root, Text: weftText,
		Chapters: []manpage.Chapter{
			{Title: "EXIT STATUS", Text: "  0  success\n  1  the request failed, or no daemon answers\n  2  the request is wrong, and nothing has changed"},
			{Title: "ENVIRONMENT", Text: "  WEFT_SOCKET   as --socket\n  WEFT_CENTRAL  as --central"},
			{Title: "FILES", Text: "  /run/weft/weft.sock  the daemon's socket"},
			{Title: "SEE ALSO", Text: "weftd(8), weft-central(8), weft.toml(5), weft-flows(7), weft-ports(7), ovs-ofctl(8)"},
		},
	}}
	for _, t := range topics() {
		pages = append(pages, manpage.Page{Name: "weft-" + t.Name(), Section: 7, Summary: t.Short, Text: t.Long,
			Chapters: []manpage.Chapter{{Title: "SEE ALSO", Text: "weft(8), weftd(8)"}}})
	}
	return pages
}

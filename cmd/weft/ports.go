// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"weft/api"
	"weft/cmd/exit"
)

const portSyntax = `Options of add-port by type:

  type=vhost-user path=SOCKET [mode=server|client] [queues=N] [mtu=N] [offloads=on|off]
                  [socket-owner=USER] [socket-group=GROUP] [socket-mode=OCTAL]
  type=tap        [dev=NAME] [netns=NAME] [mac=MAC] [mtu=N] [queues=N] [offloads=on|off]
  type=uplink     dev=NETDEV [queues=N] [offload=on|off]
  type=local      [mac=MAC] [mtu=N] [queues=N] [offloads=on|off]
  type=af_xdp     dev=NETDEV [queues=N] [mode=auto|zerocopy|copy|generic]
                  [channels=N] [rss=served] [busy_poll=US] [replace=on]
  type=af_packet  dev=NETDEV [queues=N] [offload=on|off]
  type=device     [dev=NETDEV] [queues=N] [offload=on|off] [bond=BOND] [lacp_port_id=N]
                  [lacp_port_priority=N] [lacp_aggregation_key=N]
  type=patch      peer=PORT
  type=bond       [bond_mode=active-backup|balance-slb|balance-tcp] [bond_primary=PORT]
                  [bond_updelay=MS] [bond_downdelay=MS] [lacp=active|passive|off]
                  [lacp_time=fast|slow] [lacp_fallback_ab=on|off] [lacp_system_id=MAC]
                  [lacp_system_priority=N]
  type=mirror     [output_port=PORT] [output_vlan=N] [select_all=on]
                  [select_src_port=PORT[,...]] [select_dst_port=PORT[,...]]
                  [select_vlan=N[-N][,...]] [snaplen=N]
  type=ipfix      targets=IP:PORT[,...] [sampling=N] [obs_domain_id=N] [obs_point_id=N]
                  [cache_active_timeout=S] [cache_max_flows=N] [collector_set=N]
                  [template_interval=S] [input=off] [output=off] [tunnels=off]
                  [virtual_obs_id=TEXT]
  type=sflow      targets=IP:PORT[,...] [sampling=N] [header=N] [polling=S]
                  [agent=IP|NETDEV]
  type=vxlan      vni=N|flow remote=IP[,IP...]|flow|GROUP [dev=NETDEV] [local=IP]
                  [dst_port=4789] [src_port=LOW-HIGH] [udp_csum=on|off] [ttl=N|inherit]
                  [tos=N|inherit] [df=on|off] [learning=off] [answers=off]
                  [split_horizon=off]
                  [reserved=ignore|refuse|gbp|gpe] [gbp=on] [bfd=on] [bfd_min_tx=MS]
                  [bfd_min_rx=MS] [bfd_mult=N]
  type=vxlan-gpe  as type=vxlan, without reserved= and gbp=; dst_port=4790
  type=geneve     as type=vxlan-gpe; dst_port=6081
  type=gre        as type=vxlan-gpe, with [key=N|flow] [csum=on] [seq=on] instead of vni=,
                  dst_port=, src_port= and udp_csum=
  type=erspan     as type=gre, with [erspan_ver=1|2] [erspan_idx=N] [erspan_dir=0|1]
                  [erspan_hwid=N] instead of csum= and seq=

A vhost-user, tap, device or local port may belong to a VNI: vni=N. It may be bound to addresses:
addresses="MAC [IP|PREFIX]..."[,...], and for vhost-user and device also mac=MAC[,MAC...]. Frames
from any other sender are dropped as spoofed, also in ARP and neighbour discovery, and
no other port learns these addresses. A MAC address without IP addresses may use any.

id=TEXT names a vhost-user, tap or device port for weft-central.

A bond has as its members the ports of type=device, or of type=tap, with bond=BOND.

A mirror copies frames of its bridge to a port, which then has no other traffic, or into a VLAN.
An exporter (type=ipfix, type=sflow) samples frames of its bridge for collectors.

bridge=NAME puts a port of any type except uplink, af_xdp and af_packet into a bridge of
add-br; --bridge does the same. Two patch ports that name each other join two bridges.

All types except uplink, af_xdp, af_packet, mirror and exporters may have VLANs, for actions=normal:

  [tag=N] [trunks=N[-N][,...]] [cvlans=N[-N][,...]] [qinq-ethtype=802.1ad|802.1q]
  [vlan_mode=trunk|access|native-tagged|native-untagged|dot1q-tunnel]

and may be down, or get no floods: [admin=down] [flood=off]

All types except uplink, af_xdp, af_packet, exporters, bond, mirror, patch and tunnels may have a larger share
of a busy worker's time than others: [weight=N]

All types except uplink, af_xdp, af_packet, bond, mirror, exporters and patch may have queues, which flows choose
with set_queue and enqueue, and a limit of what they send to the switch:

  [qos=QUEUE:RATE[:BURST][,...]] [ingress_policing_rate=KBPS] [ingress_policing_burst=KBIT]
  [ingress_policing_kpkts_rate=N] [ingress_policing_kpkts_burst=N]

ofport_request=N asks for a number in flows (type=local has LOCAL; mirrors and exporters have none).`

const addPortHelp = portSyntax + `

weft-ports(7), and weft help ports, explain each option.`

const modPortHelp = `Changes options of a port while it forwards; the port keeps its number, statistics and guest.
KEY= without a value gives an option its default.

  tunnels                    every option
  type=patch                 peer= and the VLANs
  type=mirror, type=bond     every option
  type=ipfix, type=sflow     every option
  type=vhost-user, type=tap  vni=, addresses=, id= and the VLANs; mac= of a vhost-user port,
                             mtu= of a tap
  all but uplinks, mirrors   admin= and flood=; except type=patch and bond, also qos= and
                             ingress_policing_...=; except tunnels, also weight=

Other options need del-port and add-port.

As with ovs-ofctl, a single word may stand for an option:

  up, down                   admin=up, admin=down: a port that is down neither takes frames
                             nor sends any
  flood, no-flood            flood=on, flood=off: whether frames are flooded to the port`

func (c *command) portVerbs() []*cobra.Command {
	var mayExist, ifExists bool
	add := &cobra.Command{
		Use: "add-port NAME type=TYPE [KEY=VALUE ...]", Short: "add a port", Long: addPortHelp, Args: words(1, -1),
		RunE: func(_ *cobra.Command, args []string) error { return c.addPort(args, mayExist) },
	}
	add.Flags().BoolVar(&mayExist, "may-exist", false, "accept a port of the name that has the same options")
	del := &cobra.Command{
		Use: "del-port NAME", Short: "delete a port", Args: words(1, 1),
		RunE: func(_ *cobra.Command, args []string) error { return c.delPort(args[0], ifExists) },
	}
	del.Flags().BoolVar(&ifExists, "if-exists", false, "accept that there is no such port")
	return []*cobra.Command{
		add, del,
		{Use: "mod-port NAME KEY=VALUE...|up|down|flood|no-flood", Short: "change options of a port", Long: modPortHelp, Args: words(2, -1), RunE: c.modPort},
		{Use: "dump-ports [NAME]", Short: "print the statistics of all ports, or of one", Args: words(0, 1), RunE: c.dumpPorts},
	}
}

func checkOptions(options []string) error {
	for _, word := range options {
		if !strings.Contains(word, "=") {
			return exit.Usagef("%s: expected KEY=VALUE, as in type=tap", word)
		}
	}
	return nil
}

func (c *command) addPort(args []string, mayExist bool) error {
	if err := checkOptions(args[1:]); err != nil {
		return err
	}
	client, err := c.client()
	if err != nil {
		return err
	}
	options := args[1:]
	if c.bridge != "" {
		options = append(slices.Clone(options), "bridge="+c.bridge)
	}
	p, err := client.EnsurePort(api.AddPort{Name: args[0], Options: options, MayExist: mayExist})
	if err != nil {
		return err
	}
	return c.printChangedPort(&p)
}

// portWords maps the words of ovs-ofctl's mod-port to the options of a port that do the same.
var portWords = map[string]string{"up": "admin=up", "down": "admin=down", "flood": "flood=on", "no-flood": "flood=off"}

func (c *command) modPort(_ *cobra.Command, args []string) error {
	for i, word := range args[1:] {
		if option, ok := portWords[word]; ok {
			args[1+i] = option
		}
	}
	if err := checkOptions(args[1:]); err != nil {
		return err
	}
	client, err := c.client()
	if err != nil {
		return err
	}
	p, err := client.ModPort(args[0], args[1:])
	if err != nil {
		return err
	}
	return c.printChangedPort(&p)
}

// printChangedPort prints the warnings about a port that was added or changed. With --json it prints
// the whole port.
func (c *command) printChangedPort(p *api.Port) error {
	if c.json {
		return c.printJSON(p)
	}
	for _, warning := range p.Warnings {
		fmt.Fprintln(c.errs, "weft: warning: "+warning)
	}
	return nil
}

func (c *command) delPort(name string, ifExists bool) error {
	client, err := c.client()
	if err != nil {
		return err
	}
	if ifExists {
		return client.DelPortIfExists(name)
	}
	return client.DelPort(name)
}

func (c *command) dumpPorts(_ *cobra.Command, args []string) error {
	client, err := c.client()
	if err != nil {
		return err
	}
	name := ""
	if len(args) == 1 {
		name = args[0]
	}
	ports, err := client.Ports(name)
	if err != nil {
		return err
	}
	if c.json {
		return c.printJSON(ports)
	}
	return c.printPortStats(ports)
}

// SPDX-License-Identifier: Apache-2.0

package ports

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"

	"weft/bfd"
	"weft/control/change"
	"weft/control/underlay"
	"weft/control/usererr"
	"weft/control/workers"
	"weft/datapath"
	"weft/engine"
	"weft/openflow/xlate"
	"weft/port"
	"weft/tunnel"
)

// Types of tunnel ports: values of the option type=.
const (
	kindVXLAN  = "vxlan"
	kindGPE    = "vxlan-gpe"
	kindGeneve = "geneve"
	kindGRE    = "gre"
	kindERSPAN = "erspan"
)

// A VNI has 24 bits (RFC 7348 section 5), an ERSPAN session ID 10 (draft-foschiano-erspan-03 section
// 4.2).
const (
	maxVNI     = 1<<24 - 1
	maxSession = 1<<10 - 1
)

func init() {
	addTunnelKind(kindVXLAN, tunnel.KindVXLAN, optionTable{"reserved": {check: oneOf(reservedBits...)}, "gbp": {check: oneOf("on", "off")}})
	addTunnelKind(kindGPE, tunnel.KindGPE, nil)
	addTunnelKind(kindGeneve, tunnel.KindGeneve, nil)
	addTunnelKind(kindGRE, tunnel.KindGRE, optionTable{
		"key": {check: wordOr("flow", numberIn(0, maxVNI))}, "csum": {check: oneOf("on", "off")}, "seq": {check: oneOf("on", "off")},
	})
	addTunnelKind(kindERSPAN, tunnel.KindERSPAN1, optionTable{
		"key":         {check: wordOr("flow", numberIn(0, maxSession))},
		"erspan_ver":  {value: "1", check: numberIn(1, 2)},
		"erspan_idx":  {check: numberOrHex(1<<20 - 1)},
		"erspan_dir":  {check: numberIn(0, 1)},
		"erspan_hwid": {check: numberOrHex(1<<6 - 1)},
	})
}

// overUDP has the options that only tunnels over UDP have.
var overUDP = []string{"vni", "dst_port", "src_port", "udp_csum"}

// addTunnelKind adds a type of tunnel. Its options are those of all tunnels and those in "own".
func addTunnelKind(name string, kind tunnel.Kind, own optionTable) {
	options := optionTable{
		"vni":      {required: true, check: wordOr("flow", numberIn(0, maxVNI))},
		"remote":   {required: true, check: wordOr("flow", remotes)},
		"dev":      {check: deviceName},
		"learning": {check: oneOf("on", "off")},
		"answers":  {check: oneOf("on", "off")},
		"local":    {check: address},
		// split_horizon=off: normal and flood send frames from other tunnels to this one, too.
		"split_horizon": {check: oneOf("on", "off")},
		"dst_port":      {value: strconv.Itoa(int(kind.Port())), check: numberIn(1, 65535)},
	}
	maps.Copy(options, own)
	maps.Copy(options, encapOptions)
	maps.Copy(options, bfdOptions)
	if !kind.HasPort() {
		maps.DeleteFunc(options, func(name string, _ option) bool { return slices.Contains(overUDP, name) })
	}
	portKinds[name] = portKind{
		kind:    xlate.PortTunnel,
		options: options,
		make:    func(c portContext) portDriver { return &tunnelPort{portContext: c} },
	}
}

// reservedBits are the values of reserved=, in the order of package tunnel's constants Ext...; the first
// is the default.
var reservedBits = []string{"ignore", "refuse", "gbp", "gpe"}

// tunnelPort is the driver of a tunnel port, which has no device. Workers decapsulate received
// datagrams by their table of tunnel ends. Look-ups of frames to send read the port's PortInfo. The
// driver itself only joins the port's multicast group and has the key that authenticates BFD.
type tunnelPort struct {
	portContext
	mu         sync.Mutex
	membership underlay.Membership
	auth       *bfd.Auth // authentication of BFD sessions; nil: the port was never open
}

// bfdAuth returns the authentication of the port's BFD sessions, and reads the key if the port was never
// open.
func (p *tunnelPort) bfdAuth() bfd.Auth {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.auth == nil {
		a, _ := readBFDAuth(p.values) // error ignored: a is a random key then, which no remote has
		p.auth = &a
	}
	return *p.auth
}

func (p *tunnelPort) open(device *engine.Kept) error {
	local, remote := p.values["local"], p.values["remote"]
	group := groupOf(p.values)
	if err := checkBFD(p.values); err != nil {
		return err
	}
	auth, err := readBFDAuth(p.values)
	if err != nil {
		return err
	}
	p.mu.Lock()
	p.auth = &auth
	p.mu.Unlock()
	switch {
	case group.IsValid() && p.values["dev"] == "":
		return usererr.Errorf("remote=%s: expected dev= as well: the device through which the multicast group is reached", remote)
	case !group.IsValid() && p.values["dev"] != "":
		return usererr.Errorf("dev=%s: expected dev= only if remote= is a multicast group; the kernel's routes choose the device of other remotes", p.values["dev"])
	case remote == "flow":
		return nil
	}
	if name, network := networkWord(p.values); (group.IsValid() || strings.Contains(remote, ",")) && network == "flow" {
		return usererr.Errorf("remote=%s: several remotes need %s=NUMBER; %s=flow was given", remote, name, name)
	}
	for word := range strings.SplitSeq(remote, ",") {
		// MustParseAddr cannot panic: the option table has checked both addresses
		if local != "" && netip.MustParseAddr(local).Is4() != netip.MustParseAddr(word).Is4() {
			return usererr.Errorf("local=%s: expected an address of the same family as remote=%s", local, remote)
		}
	}
	p.join()
	return nil
}

func (p *tunnelPort) attach(bool) error          { return nil }
func (p *tunnelPort) fault(string) bool          { return true }
func (p *tunnelPort) network(_ []netip.AddrPort) { p.join() }

// join makes the kernel join the port's multicast group on the device that the option dev= names.
func (p *tunnelPort) join() {
	group := groupOf(p.values)
	if !group.IsValid() {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.membership.Join(group, p.values["dev"]) {
		p.log.Info("multicast group", "group", group, "dev", p.values["dev"], "trouble", p.membership.Trouble)
	}
}

// status returns the state of the port and what is wrong with its remotes. The port is down only
// while all its remotes are down, or while it cannot join its multicast group.
func (p *tunnelPort) status() portStatus {
	p.mu.Lock()
	trouble := p.membership.Trouble
	p.mu.Unlock()
	if trouble != "" {
		return portStatus{state: stateDown, detail: trouble}
	}
	s := p.remotes(p.number)
	others := s.Up + s.Waiting + s.Down - 1
	status := portStatus{state: StateUp, detail: s.Reason}
	switch {
	case s.Down > 0 && s.Up+s.Waiting == 0:
		status.state = stateDown
		if others > 0 {
			status.detail = fmt.Sprintf("all %d remotes are down: %s", s.Down, s.Reason)
		}
	case s.Down > 0:
		status.detail = fmt.Sprintf("%d of %d remotes down: %s", s.Down, others+1, s.Reason)
	case others > 0 && s.Waiting > 0:
		status.detail = fmt.Sprintf("%d of %d remotes waiting: %s", s.Waiting, others+1, s.Reason)
	}
	return status
}

func (p *tunnelPort) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.membership.Leave()
}

// tunnelKind returns the kind of outer header that the options of a tunnel port select.
func tunnelKind(values map[string]string) tunnel.Kind {
	switch {
	case values["type"] == kindGRE:
		return tunnel.KindGRE
	case values["type"] == kindERSPAN && values["erspan_ver"] == "2":
		return tunnel.KindERSPAN2
	case values["type"] == kindERSPAN:
		return tunnel.KindERSPAN1
	case values["type"] == kindGeneve:
		return tunnel.KindGeneve
	case values["type"] == kindGPE:
		return tunnel.KindGPE
	case values["gbp"] == "on":
		return tunnel.KindGBP
	}
	return tunnel.KindVXLAN
}

// encapOf maps each kind of outer header to the tunnel fields that flows can use with it.
var encapOf = map[tunnel.Kind]xlate.Encap{
	tunnel.KindVXLAN: xlate.EncapVXLAN, tunnel.KindGBP: xlate.EncapGBP,
	tunnel.KindGPE: xlate.EncapGPE, tunnel.KindGeneve: xlate.EncapGeneve,
	tunnel.KindGRE: xlate.EncapGRE, tunnel.KindERSPAN1: xlate.EncapGRE, tunnel.KindERSPAN2: xlate.EncapGRE,
}

func (p *switchPort) isTunnel() bool { return p.info.Kind == xlate.PortTunnel }

// checkUDPPort returns an error if the tunnels p and o use the same UDP port with different headers.
// Only the UDP port tells a receiver which header a datagram has.
func checkUDPPort(p, o *switchPort) error {
	if !p.isTunnel() || !o.isTunnel() || p.udpPort == 0 || p.udpPort != o.udpPort || tunnelKind(p.values).SharesPort(tunnelKind(o.values)) {
		return nil
	}
	return usererr.Errorf("dst_port=%d: port %s, of type=%s, uses it; expected another UDP port for type=%s", p.udpPort, o.saved.Name, o.kind, p.kind)
}

// networkWord returns the name of the option that selects a tunnel's network, vni= or key=, and its
// value.
func networkWord(values map[string]string) (name, value string) {
	if name = "vni"; !tunnelKind(values).HasPort() {
		name = "key"
	}
	return name, values[name]
}

// fillTunnel stores a tunnel port's options in "info". The option table has checked them. It returns
// the outer UDP destination port, or 0 for a tunnel without UDP.
func fillTunnel(info *xlate.PortInfo, values map[string]string) (udpPort uint16) {
	info.Encap = encapOf[tunnelKind(values)]
	_, network := networkWord(values)
	if info.FlowVNI = network == "flow"; !info.FlowVNI {
		vni, _ := strconv.ParseUint(network, 10, 24)
		info.VNI = uint32(vni)
	}
	if info.FlowRemote = values["remote"] == "flow"; !info.FlowRemote {
		info.Remote, info.Remotes = parseRemotes(values["remote"])
	}
	info.BFD = values["bfd"] == "on"
	info.NoSplitHorizon = values["split_horizon"] == "off"
	info.NoLearning, info.NoAnswers = values["learning"] == "off", values["answers"] == "off"
	if values["local"] != "" {
		info.Local = netip.MustParseAddr(values["local"])
	}
	n, _ := strconv.ParseUint(values["dst_port"], 10, 16)
	return uint16(n)
}

// memberVNI is the option vni= of ports that are no tunnels: the network that the port belongs to.
var memberVNI = option{check: numberIn(0, maxVNI)}

func fillMember(info *xlate.PortInfo, values map[string]string) {
	if info.InVNI = values["vni"] != ""; info.InVNI {
		vni, _ := strconv.ParseUint(values["vni"], 10, 24)
		info.VNI = uint32(vni)
	}
}

func (p *switchPort) termination() tunnel.Termination {
	t := tunnel.Termination{Port: p.saved.Number, VNI: p.info.VNI, UDPPort: p.udpPort}
	if p.info.FlowVNI {
		t.VNI = tunnel.AnyVNI
	}
	t.Extensions = uint8(max(0, slices.Index(reservedBits, p.values["reserved"])))
	t.Kind = tunnelKind(p.values)
	if t.Kind == tunnel.KindGBP && t.Extensions == tunnel.ExtRefuse {
		t.Extensions = tunnel.ExtGBP // GBP uses some of the reserved bits, so they are no error
	}
	t.BFD = p.info.BFD
	// A tunnel with a multicast group gets datagrams to the local address and to the group, so it
	// accepts any destination address.
	if p.info.Local.IsValid() && !groupOf(p.values).IsValid() {
		t.Local = p.info.Local.As16()
	}
	if p.info.Remote.IsValid() {
		t.Remote = p.info.Remote.As16()
	}
	return t
}

// The number of a tunnel port is its index in the workers' table of tunnel ends. The table must be
// large enough for all port numbers.
var _ = [tunnel.MaxTerminations - port.MaxPorts + 1]struct{}{}

// sendTerminations sends the changed entries of the table of tunnel ends to the workers. The table
// decides which received datagrams are decapsulated.
func (ps *Ports) sendTerminations(_ *change.Tx, w *workers.Workers) {
	changed := false
	for no := range uint32(port.MaxPorts) {
		p := ps.byNumber[no]
		switch {
		case p != nil && p.isTunnel():
			t := p.termination()
			if ps.terminated[no] == t {
				continue
			}
			ps.terminated[no] = t
			w.Broadcast(datapath.AppendTermination(nil, no, &t))
		case ps.terminated[no] != tunnel.Termination{}:
			delete(ps.terminated, no)
			w.Broadcast(datapath.AppendCommand(nil, datapath.CmdRemoveTermination, no, nil))
		default:
			continue
		}
		changed = true
	}
	if changed {
		ps.pipeline.SetOffloadTunnels(ps.terminated)
	}
}

// uplinks returns the port numbers of the open uplinks, by device name.
func (ps *Ports) uplinks(*change.Tx) map[string]uint32 {
	devices := map[string]uint32{}
	for no, p := range ps.byNumber {
		if p.info.Kind == xlate.PortUplink && p.opened {
			devices[p.values["dev"]] = no
		}
	}
	return devices
}

// updateEndpoints makes the drivers check the ports' devices, and passes the present tunnel
// endpoints to the uplinks.
func (ps *Ports) updateEndpoints() {
	ps.configuration.Do(func(tx *change.Tx) {
		if ps.followDevices(tx) {
			ps.touch(tx) // the commit then passes the endpoints, too
			return
		}
		ps.updateEndpointsLocked(tx)
	})
}

func (ps *Ports) updateEndpointsLocked(tx *change.Tx) {
	endpoints := ps.endpoints(tx)
	for _, p := range ps.byNumber {
		if p.opened {
			p.driver.network(ps.endpointsOf(p, endpoints))
		}
	}
}

// endpointsOf returns those of the tunnel endpoints that are valid on the port's device. It leaves
// out the link-local addresses of other devices.
func (ps *Ports) endpointsOf(p *switchPort, endpoints []netip.AddrPort) []netip.AddrPort {
	own := ps.kernel.AddressesOf(p.values["dev"])
	return slices.DeleteFunc(slices.Clone(endpoints), func(e netip.AddrPort) bool {
		return e.Addr().IsLinkLocalUnicast() && !slices.Contains(own, e.Addr())
	})
}

// endpoints returns the addresses and UDP ports at which tunnels receive, sorted. The UDP port is 0
// for GRE. A tunnel port receives at its local address, and at its multicast group if it has one.
// Without a local address it receives at each address of the uplinks that is of the remote's family.
func (ps *Ports) endpoints(tx *change.Tx) []netip.AddrPort {
	var local []netip.Addr
	for device := range ps.uplinks(tx) {
		local = append(local, ps.kernel.AddressesOf(device)...)
	}
	set := map[netip.AddrPort]bool{}
	for _, p := range ps.byNumber {
		if !p.isTunnel() {
			continue
		}
		if group := groupOf(p.values); group.IsValid() {
			set[netip.AddrPortFrom(group, p.udpPort)] = true
		}
		if p.info.Local.IsValid() {
			set[netip.AddrPortFrom(p.info.Local, p.udpPort)] = true
			continue
		}
		for _, a := range local {
			if !p.info.Remote.IsValid() || a.Is4() == p.info.Remote.Is4() {
				set[netip.AddrPortFrom(a, p.udpPort)] = true
			}
		}
	}
	var list []netip.AddrPort
	for e := range set {
		list = append(list, e)
	}
	slices.SortFunc(list, netip.AddrPort.Compare)
	return list
}

package control

import (
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"weft/datapath"
	"weft/engine"
	"weft/openflow"
	"weft/port"
	"weft/tunnel"
)

const kindVXLAN = "vxlan"

// maxVNI is the largest VNI: it has 24 bits (RFC 7348 section 5).
const maxVNI = 1<<24 - 1

func init() {
	options := optionTable{
		"vni":      {required: true, check: either("flow", numberIn(0, maxVNI))},
		"remote":   {required: true, check: either("flow", addresses)},
		"local":    {check: address},
		"dst_port": {value: "4789", check: numberIn(1, 65535)},
	}
	maps.Copy(options, outerOptions)
	portKinds[kindVXLAN] = portKind{
		kind:    openflow.PortTunnel,
		options: options,
		make:    func(c portContext) portDriver { return &vxlanPort{portContext: c} },
	}
}

// vxlanPort has no device: it is a row of the workers' termination table, and
// what translation knows of it.
type vxlanPort struct{ portContext }

func (p *vxlanPort) open(kept *engine.Kept) error {
	local, remote := p.values["local"], p.values["remote"]
	if remote == "flow" {
		return nil
	}
	if strings.Contains(remote, ",") && p.values["vni"] == "flow" {
		return inputf("remote=%s: expected a vni of the port's own for a list of remotes", remote)
	}
	for word := range strings.SplitSeq(remote, ",") {
		if local != "" && netip.MustParseAddr(local).Is4() != netip.MustParseAddr(word).Is4() { // checked by the option table
			return inputf("local=%s: expected an address of the same family as remote=%s", local, remote)
		}
	}
	return nil
}

func (p *vxlanPort) attach(bool) error          { return nil }
func (p *vxlanPort) fault(string) bool          { return true }
func (p *vxlanPort) network(_ []netip.AddrPort) {}
func (p *vxlanPort) status() portStatus         { return portStatus{state: stateUp} }
func (p *vxlanPort) close()                     {}

// fillVXLAN tells translation of a vxlan port; it returns the outer destination
// port. Values are checked.
func fillVXLAN(info *openflow.PortInfo, values map[string]string) (udpPort uint16) {
	if info.FlowVNI = values["vni"] == "flow"; !info.FlowVNI {
		vni, _ := strconv.ParseUint(values["vni"], 10, 24)
		info.VNI = uint32(vni)
	}
	if info.FlowRemote = values["remote"] == "flow"; !info.FlowRemote {
		info.Remote, info.Remotes = parseRemotes(values["remote"])
	}
	if values["local"] != "" {
		info.Local = netip.MustParseAddr(values["local"])
	}
	n, _ := strconv.ParseUint(values["dst_port"], 10, 16)
	return uint16(n)
}

// termination is the port's row of the workers' table.
func (p *switchPort) termination() tunnel.Termination {
	t := tunnel.Termination{Port: p.saved.Number, VNI: p.info.VNI, UDPPort: p.udpPort}
	if p.info.FlowVNI {
		t.VNI = tunnel.AnyVNI
	}
	if p.info.Local.IsValid() {
		t.Local = p.info.Local.As16()
	}
	if p.info.Remote.IsValid() {
		t.Remote = p.info.Remote.As16()
	}
	return t
}

// A vxlan port's index in the table of terminations is its number.
var _ = [tunnel.MaxTerminations - port.MaxPorts + 1]struct{}{}

// sendTerminations makes the workers' tables what the ports say. Caller holds
// change.
func (d *Daemon) sendTerminations(w *workers) {
	for no := range uint32(port.MaxPorts) {
		p := d.ports[no]
		switch {
		case p != nil && p.kind == kindVXLAN:
			t := p.termination()
			if d.terminated[no] == t {
				continue
			}
			d.terminated[no] = t
			w.broadcast(datapath.AppendTermination(nil, no, &t))
		case d.terminated[no] != tunnel.Termination{}:
			delete(d.terminated, no)
			w.broadcast(datapath.AppendCommand(nil, datapath.CmdRemoveTermination, no, nil))
		}
	}
}

// uplinks maps the devices of uplink ports to their numbers. Caller holds
// change.
func (d *Daemon) uplinks() map[string]uint32 {
	devices := map[string]uint32{}
	for no, p := range d.ports {
		if p.info.Kind == openflow.PortUplink && p.opened {
			devices[p.values["dev"]] = no
		}
	}
	return devices
}

// updateEndpoints tells the uplinks which datagrams are for the switch.
func (d *Daemon) updateEndpoints() {
	d.change.Lock()
	defer d.change.Unlock()
	d.followDevices()
	d.updateEndpointsLocked()
}

func (d *Daemon) updateEndpointsLocked() {
	endpoints := d.endpoints()
	for _, p := range d.ports {
		if p.opened {
			p.driver.network(endpoints)
		}
	}
}

// endpoints are the local ends of all vxlan ports: the address a port names, or
// else every address of every uplink's device. Sorted.
func (d *Daemon) endpoints() []netip.AddrPort {
	var local []netip.Addr
	for device := range d.uplinks() {
		if l, ok := d.underlay.device(device); ok {
			local = append(local, l.addrs...)
		}
	}
	set := map[netip.AddrPort]bool{}
	for _, p := range d.ports {
		if p.kind != kindVXLAN {
			continue
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

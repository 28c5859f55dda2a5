// SPDX-License-Identifier: Apache-2.0

package ports

import (
	"weft/control/usererr"
	"weft/openflow/xlate"
)

func (ps *Ports) conflict(p *switchPort) error {
	if err := ps.checkBuckets(p); err != nil {
		return err
	}
	for number, o := range ps.byNumber {
		if number == p.saved.Number { // p replaces the port that has its number
			continue
		}
		if o.saved.Name == p.saved.Name {
			return usererr.Errorf("port name %s: there is a port of that name; expected another, or del-port first", p.saved.Name)
		}
		if id := p.values["id"]; id != "" && id == o.values["id"] {
			return usererr.Errorf("id=%s: port %s has it already; expected another", id, o.saved.Name)
		}
		if err := checksumConflict(p, o); err != nil {
			return err
		}
		if err := checkUDPPort(p, o); err != nil {
			return err
		}
		if err := checkSets(p, o); err != nil {
			return err
		}
		if dev := p.takesDevice(); dev != "" && dev == o.takesDevice() {
			return usererr.Errorf("dev=%s: port %s has it already, with type=%s; expected another", dev, o.saved.Name, o.kind)
		}
		if o.kind != p.kind {
			continue
		}
		if p.kind == kindLocal && o.info.Bridge == p.info.Bridge {
			return usererr.Errorf("type=local: port %s is LOCAL already; expected one such port in a bridge", o.saved.Name)
		}
		for _, key := range exclusive[p.kind] {
			if p.values[key] == o.values[key] && p.values[key] != "" && p.values["netns"] == o.values["netns"] {
				return usererr.Errorf("%s=%s: port %s has it already; expected another", key, p.values[key], o.saved.Name)
			}
		}
		if p.isTunnel() && p.udpPort == o.udpPort && p.info.VNI == o.info.VNI && p.info.FlowVNI == o.info.FlowVNI &&
			p.values["remote"] == o.values["remote"] && p.values["local"] == o.values["local"] {
			if p.udpPort == 0 {
				return usererr.Errorf("remote=%s: port %s has the same key, remote and local; expected one of them to differ",
					p.values["remote"], o.saved.Name)
			}
			return usererr.Errorf("vni=%s: port %s has the same vni, remote, local and dst_port; expected one of them to differ",
				p.values["vni"], o.saved.Name)
		}
	}
	return nil
}

// checksumConflict returns an error if one of two ports is an AF_XDP uplink on the tap of the
// other, and the tap has offloads. XDP programs run before the kernel notes that a frame's
// checksum is unfinished, so the uplink would deliver frames with wrong checksums.
func checksumConflict(p, o *switchPort) error {
	xdp, tap := p, o
	if o.kind == kindXDP {
		xdp, tap = o, p
	}
	if xdp.kind != kindXDP || tap.kind != kindTap && tap.kind != kindLocal {
		return nil
	}
	dev := tap.values["dev"]
	if dev == "" {
		dev = tap.saved.Name
	}
	if dev != xdp.values["dev"] || tap.values["netns"] != "" || tap.values["offloads"] != "on" {
		return nil
	}
	return usererr.Errorf("port %s: its tap %s passes unfinished checksums, which type=af_xdp of port %s cannot see; expected offloads=off of port %s, or type=af_packet of port %s",
		tap.saved.Name, dev, xdp.saved.Name, tap.saved.Name, xdp.saved.Name)
}

// isUplink reports whether the port is an uplink of any kind. Two uplinks on one device conflict: both
// would receive each datagram of a tunnel, or the XDP program of one would take them all.
func (p *switchPort) isUplink() bool { return p.info.Kind == xlate.PortUplink }

// exclusive has, for each kind of port, the options whose values must differ between
// all ports of the kind.
var exclusive = map[string][]string{kindVhost: {"path"}, kindTap: {"dev"}}

// SPDX-License-Identifier: Apache-2.0

package ports

import (
	"maps"
	"slices"
	"strconv"
	"strings"

	"weft/control/change"
	"weft/control/usererr"
	"weft/openflow/xlate"
)

// kindMirror is a mirror of a bridge. It is a kind of port because it is added, changed, saved and
// counted like a port, but flows cannot name it. Its counters count the copies.
const kindMirror = "mirror"

const selectAll, selectSrc, selectDst, selectVLAN = "select_all", "select_src_port", "select_dst_port", "select_vlan"

func init() {
	portKinds[kindMirror] = portKind{
		kind: xlate.PortMirror,
		options: optionTable{
			selectAll: {check: oneOf("on", "off")}, selectSrc: {check: portNames}, selectDst: {check: portNames}, selectVLAN: {check: vlanSetWords},
			"output_port": {check: portNames}, "output_vlan": {check: numberIn(1, maxVID-1)},
			"snaplen": {check: numberIn(minSnaplen, maxSnaplen)},
		},
		make: func(portContext) portDriver { return &virtualPort{} },
	}
	changeable[kindMirror] = slices.Sorted(maps.Keys(portKinds[kindMirror].options))
}

// minSnaplen and maxSnaplen are the limits of Open vSwitch's column snaplen.
const minSnaplen, maxSnaplen = 14, 65535

func portNames(value string) string {
	for name := range strings.SplitSeq(value, ",") {
		if checkPortName(name) != nil {
			return "names of ports, as in vm1,vm2"
		}
	}
	return ""
}

// checkMirror requires exactly one output of a mirror, and refuses options that exclude each other.
func (p *switchPort) checkMirror() error {
	port, vlan := p.values["output_port"], p.values["output_vlan"]
	switch {
	case p.kind != kindMirror:
	case (port == "") == (vlan == ""):
		return usererr.Errorf("mirror %s: expected one of output_port= and output_vlan=", p.saved.Name)
	case strings.Contains(port, ","):
		return usererr.Errorf("output_port=%s: expected one port", port)
	case vlan != "" && p.values["snaplen"] != "":
		return usererr.Errorf("snaplen=%s: a mirror to a VLAN copies whole frames; expected output_port=", p.values["snaplen"])
	}
	return nil
}

// joinMirrors looks up the ports in the options of mirrors. It stores their numbers in the PortInfo
// of each mirror, which look-ups of frames read.
func (ps *Ports) joinMirrors(*change.Tx) {
	var mirrors []*switchPort
	for _, p := range ps.byNumber {
		p.info.MirrorOut = false
		if p.kind == kindMirror {
			mirrors = append(mirrors, p)
		}
	}
	if len(mirrors) == 0 {
		return
	}
	slices.SortFunc(mirrors, func(a, b *switchPort) int { return strings.Compare(a.saved.Name, b.saved.Name) })
	of := map[uint8]int{}
	for _, p := range mirrors {
		driver := p.driver.(*virtualPort)
		if of[p.info.Bridge]++; of[p.info.Bridge] > xlate.MaxMirrors {
			driver.setTrouble("the bridge has more than " + strconv.Itoa(xlate.MaxMirrors) + " mirrors")
			p.info.Mirror = &xlate.Mirror{}
			continue
		}
		m, missing := ps.mirrorOf(p)
		p.info.Mirror = m
		switch {
		case len(missing) > 0:
			driver.setTrouble("its bridge has no port " + strings.Join(missing, ", "))
		case !m.All && len(m.Src)+len(m.Dst) == 0:
			driver.setTrouble("selects no port: expected select_all=on, select_src_port= or select_dst_port=")
		default:
			driver.setTrouble("")
		}
		if out := ps.byNumber[m.Output]; out != nil {
			out.info.MirrorOut = true
		}
	}
}

// mirrorOf returns what look-ups of frames need about a mirror. "missing" has the names of ports in
// the mirror's options that its bridge does not have.
func (ps *Ports) mirrorOf(p *switchPort) (m *xlate.Mirror, missing []string) {
	find := func(name string) uint32 {
		if o := ps.portByName(name); o != nil && o.info.Bridge == p.info.Bridge && (o.info.Kind == xlate.PortNormal || o.info.Kind == xlate.PortTunnel || o.info.Kind == xlate.PortPatch || o.info.Kind == xlate.PortBond) {
			return o.saved.Number
		}
		missing = append(missing, name)
		return 0
	}
	set := func(option string) map[uint32]bool {
		numbers := map[uint32]bool{}
		if p.values[option] == "" {
			return numbers
		}
		for name := range strings.SplitSeq(p.values[option], ",") {
			if n := find(name); n != 0 {
				numbers[n] = true
			}
		}
		return numbers
	}
	m = &xlate.Mirror{All: p.values[selectAll] == "on", Src: set(selectSrc), Dst: set(selectDst)}
	if p.values[selectVLAN] != "" {
		m.VLANs, _ = parseVLANs(p.values[selectVLAN])
	}
	if name := p.values["output_port"]; name != "" {
		m.Output = find(name)
	}
	number := func(option string) int { n, _ := strconv.Atoi(p.values[option]); return n } // valid, or "" for 0
	m.OutputVLAN, m.Snaplen = uint16(number("output_vlan")), uint32(number("snaplen"))
	return m, missing
}

// SPDX-License-Identifier: Apache-2.0

package xlate

import (
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"

	"weft/flowtable"
	"weft/openflow"
	"weft/openflow/fdb"
	"weft/openflow/ofproto"
	"weft/openflow/openflowtest"
	"weft/packet"
)

// fakeEnv is a switch with ordinary ports, tunnels and an uplink.
type fakeEnv struct {
	ports   []PortInfo
	macs    *fdb.Table
	mirrors []PortInfo
	// exporters are the ports of kind PortExporter.
	exporters []PortInfo
	bridges   []fakeBridge // nil: one bridge
	options   [][]byte     // Geneve options; their hash is index + 1; nil: no Geneve port
}

type fakeBridge struct {
	p   *ofproto.Tables
	env *fakeEnv
}

// Bridge and Several implement Bridges.
func (e *fakeEnv) Bridge(number uint8) (*ofproto.Tables, Env) {
	return e.bridges[number].p, e.bridges[number].env
}
func (e *fakeEnv) Several() bool { return len(e.bridges) > 1 }

// Geneve and Options implement tunnelOptions.
func (e *fakeEnv) Geneve() bool { return e.options != nil }
func (e *fakeEnv) Options(hash uint64) ([]byte, bool) {
	if hash == 0 || hash > uint64(len(e.options)) {
		return nil, false
	}
	return e.options[hash-1], true
}

// TLVs makes the fields of testTLVs known to parsers.
func (e *fakeEnv) TLVs() *openflow.TLVMap { return testTLVs }

func newEnv() *fakeEnv {
	return &fakeEnv{
		ports: []PortInfo{
			{No: 1, Name: "a"}, {No: 2, Name: "b"}, {No: 3, Name: "vm-1", NoFlood: true}, {No: 4, Name: "d"},
			{No: 5, Name: "vx5", Kind: PortTunnel, VNI: 55, Remote: netip.MustParseAddr("192.0.2.5")},
			{No: 6, Name: "vxflow", Kind: PortTunnel, FlowVNI: true, FlowRemote: true, FlowLocal: true},
			{No: 7, Name: "up", Kind: PortUplink},
		},
		macs: fdb.New(0, 0),
	}
}

func (e *fakeEnv) Port(number uint32) (PortInfo, bool) {
	for _, p := range e.ports {
		if p.No == number {
			return p, true
		}
	}
	return PortInfo{}, false
}
func (e *fakeEnv) PortAt(number uint32) (PortInfo, bool) {
	ports := e.ports
	for _, b := range e.bridges {
		ports = append(ports[:len(ports):len(ports)], b.env.ports...)
	}
	for _, p := range ports {
		if p.At() == number {
			return p, true
		}
	}
	return PortInfo{}, false
}
func (e *fakeEnv) Ports() []PortInfo { return e.ports }
func (e *fakeEnv) Bound() bool {
	return slices.ContainsFunc(e.ports, func(p PortInfo) bool {
		return p.Binding != nil || p.LACP || p.Off || p.MirrorOut || len(p.Policing) > 0
	})
}
func (e *fakeEnv) Mirrors() []PortInfo { return e.mirrors }

func (e *fakeEnv) Exporters() []PortInfo { return e.exporters }
func (e *fakeEnv) VTEP(s fdb.Segment, vlan uint16, mac uint64) netip.Addr {
	return e.macs.VTEP(s, vlan, mac)
}
func (e *fakeEnv) Locate(s fdb.Segment, vlan uint16, mac uint64) (uint32, bool) {
	return e.macs.Locate(s, vlan, mac)
}
func (e *fakeEnv) Announced(s fdb.Segment, vlan uint16, mac uint64, port uint32) bool {
	return e.macs.Announced(s, vlan, mac, port)
}
func (e *fakeEnv) Central() bool {
	return slices.ContainsFunc(e.ports, func(p PortInfo) bool { return p.Central })
}
func (e *fakeEnv) CentralTunnel() (PortInfo, bool) {
	for _, p := range e.ports {
		if p.Central && p.Kind == PortTunnel {
			return p, true
		}
	}
	return PortInfo{}, false
}
func (e *fakeEnv) Network(s fdb.Segment) *fdb.Network { return e.macs.Network(s) }
func (e *fakeEnv) Place(s fdb.Segment, mac uint64) (fdb.Place, bool) {
	return e.macs.Place(s, mac)
}
func (e *fakeEnv) HostOf(s fdb.Segment, ip netip.Addr) (uint64, bool) { return e.macs.HostOf(s, ip) }
func (e *fakeEnv) Neighbour(s fdb.Segment, vlan uint16, ip netip.Addr) (uint64, bool) {
	return e.macs.Neighbour(s, vlan, ip)
}

func (e *fakeEnv) Tunnel(number, vni uint32, local, remote netip.Addr) (uint32, packet.DropReason) {
	h := number*31 + vni
	for _, b := range remote.AsSlice() {
		h = h*31 + uint32(b)
	}
	for _, b := range local.AsSlice() {
		h = h*37 + uint32(b)
	}
	return h, packet.DropNone
}
func (e *fakeEnv) PortByName(name string) (uint32, bool) {
	for _, p := range e.ports {
		if p.Name == name {
			return p.No, true
		}
	}
	return 0, false
}
func (e *fakeEnv) PortName(number uint32) (string, bool) {
	p, ok := e.Port(number)
	return p.Name, ok
}

func key(f *openflow.Flow) (k flowtable.Key) {
	copy(k[:], f[:])
	return k
}

const randomGroups = `group_id=1,type=all,bucket=mod_dl_dst:00:00:00:00:00:03,push_vlan:0x8100,2,bucket=dec_ttl,resubmit(,3),bucket=strip_vlan,4
group_id=2,type=select,bucket=weight:3,mod_nw_src:10.1.0.2,1,bucket=group:3,bucket=set_field:2->reg0,normal
group_id=3,type=ff,bucket=watch_port:1,mod_nw_ttl:3,2,bucket=watch_port:2,4
`

// addRandom adds random groups and n random rules to empty tables, and returns the texts of
// the rules.
func addRandom(p *ofproto.Tables, r *rand.Rand, n int) (texts []string) {
	mapTLVs(p)
	mods, err := openflow.ParseGroupMods(strings.NewReader(randomGroups), openflow.GroupAdd, openflow.WithTLVs(nil, testTLVs))
	if err == nil {
		_, err = p.ApplyGroups(mods, 0)
	}
	if err != nil {
		panic(err)
	}
	for len(texts) < n {
		text := openflowtest.FlowText(r)
		mod, err := openflow.ParseFlowMod(text, openflow.Add, openflow.WithTLVs(nil, testTLVs))
		if err != nil {
			continue // an action lacks its prerequisite
		}
		if _, err := p.Apply([]openflow.FlowMod{mod}, 0); err != nil {
			panic(err)
		}
		texts = append(texts, text)
	}
	return texts
}

// mapTLVs gives the pipeline the mappings of testTLVs.
func mapTLVs(p *ofproto.Tables) {
	if err := p.ChangeTLVs(&openflow.TLVMod{Mappings: testTLVs.Mappings()}); err != nil {
		panic(err)
	}
}

// learnOf returns the address that normal learns in a switch with one bridge.
func learnOf(t *Translation) fdb.Learn {
	if len(t.Learns) == 0 {
		return fdb.Learn{}
	}
	return t.Learns[0]
}

// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"bytes"
	"encoding/binary"
	"testing"

	"github.com/google/gopacket/layers"

	"weft/flowtable"
	"weft/packet"
	"weft/port/porttest"
	"weft/tunnel"
)

// geneveHeaders is the length in bytes of the outer headers without options.
const geneveHeaders = 14 + 20 + 8 + 8

var someOptions = []byte{1, 2, 3, 1, 0xa, 0xb, 0xc, 0xd, 1, 2, 0x84, 0}

// withGeneve is withTunnel for Geneve: template 1 leads to the rig itself.
func withGeneve(t *testing.T, state uint32) (*rig, tunnel.Template) {
	t.Helper()
	r := twoPorts(t)
	r.addPort(uplinkPort, porttest.Options{Header: packet.InnerHeader, Span: 200}, true)
	tmpl, err := tunnel.Build(tunnel.Params{Port: uplinkPort, MTU: 1514, Local: loopback, Remote: loopback, UDPPort: 6081, Kind: tunnel.KindGeneve})
	if err != nil {
		t.Fatal(err)
	}
	waits := tmpl
	waits.State = state
	r.command(AppendTemplate(nil, 1, &waits))
	r.command(AppendTermination(nil, 0, &tunnel.Termination{Port: vxlanPort, VNI: 77, UDPPort: 6081, Kind: tunnel.KindGeneve}))
	r.turn()
	r.equal("refused", r.sh.Counters.CommandsRefused, 0)
	return r, tmpl
}

func oam() flowtable.Action {
	return flowtable.Action{Op: flowtable.OpTunMeta, U64: flowtable.TunOAM << flowtable.TunFlagsShift}
}

// takeGeneve takes the only frame that the uplink has sent. It returns the options, the flags
// byte and the inner frame.
func (r *rig) takeGeneve() (options []byte, flags byte, inner []byte) {
	r.t.Helper()
	wire := r.tx(uplinkPort).TakeAll()
	if len(wire) != 1 {
		r.t.Fatalf("%d frames on the wire", len(wire))
	}
	h := wire[0][geneveHeaders-tunnel.HeaderLen:]
	n := 4 * int(h[0]&0x3f)
	return h[8 : 8+n], h[1], h[8+n:]
}

// Options and flags apply to the tunnel outputs behind them in their list, until others replace
// them.
func TestTunnelFieldsAreSent(t *testing.T) {
	r, _ := withGeneve(t, tunnel.TemplateReady)
	set := func(options []byte) []flowtable.Action { return flowtable.AppendTunOptions(nil, options) }
	long := bytes.Repeat([]byte{9, 9, 9, 0}, 63)
	list := append([]flowtable.Action{toTunnel(77), oam()}, set(someOptions)...)
	list = append(append(list, toTunnel(77), output(2)), set(long)...)
	list = append(append(list, flowtable.Action{Op: flowtable.OpTunMeta}, toTunnel(77)), set(nil)...)
	list = append(list, toTunnel(77))
	r.install(0, 1, 0xa, list...)
	r.install(1, 1, 0xb, toTunnel(77))
	f := ethernet(0xa, 200, 3)
	r.inject(1, f, ethernet(0xb, 200, 3))
	r.turn()
	wire := r.tx(uplinkPort).TakeAll()
	want := []struct {
		options []byte
		flags   byte
	}{{nil, 0}, {someOptions, 0xc0}, {long, 0}, {nil, 0}, {nil, 0}}
	if len(wire) != len(want) {
		t.Fatalf("%d frames on the wire, want %d", len(wire), len(want))
	}
	for i, w := range want {
		h, n := wire[i][geneveHeaders-tunnel.HeaderLen:], len(w.options)
		if int(h[0]) != n/4 || h[1] != w.flags || !bytes.Equal(h[8:8+n], w.options) || len(h) != 8+n+200 {
			t.Errorf("output %d: % x", i, h[:min(len(h), 60)])
		}
	}
	if got := r.tx(2).TakeAll(); len(got) != 1 || !bytes.Equal(got[0], f) {
		t.Error("the plain output has another frame")
	}
	r.equal("bytes of the tunnel", r.sh.Ports[vxlanPort].TxBytes, 5*200)
	r.drops(nil)
}

// A frame that has waited for its tunnel's neighbour is sent with the tunnel fields that its actions had
// set.
func TestTunnelFieldsOfAWaitingFrame(t *testing.T) {
	r, tmpl := withGeneve(t, tunnel.TemplatePending)
	list := append(flowtable.AppendTunOptions(nil, someOptions), oam(), toTunnel(77))
	r.install(0, 1, 0xa, list...)
	r.install(1, 1, 0xb, toTunnel(77))
	for _, c := range []struct {
		dst     uint64
		options []byte
		flags   byte
	}{{0xa, someOptions, 0xc0}, {0xb, nil, 0}} {
		waits := tmpl
		waits.State = tunnel.TemplatePending
		r.command(AppendTemplate(nil, 1, &waits))
		f := ethernet(c.dst, 300, 3)
		r.inject(1, f)
		r.turn()
		up := r.mustUpcall(UpNeighbour)
		r.command(AppendTemplate(nil, 1, &tmpl))
		r.command(AppendCommand(nil, CmdRetry, up.Arg, nil))
		r.turn()
		if options, flags, inner := r.takeGeneve(); !bytes.Equal(options, c.options) || flags != c.flags || !bytes.Equal(inner, f) {
			t.Errorf("options %x, flags %#x", options, flags)
		}
	}
}

// Control gets the Geneve options of a frame with its miss, and the look-up after the answer uses their
// hash. A megaflow that matches the hash does not match other options. A megaflow whose mask lacks the hash
// matches all options.
func TestOptionsAreMatched(t *testing.T) {
	r, _ := withGeneve(t, tunnel.TemplateReady)
	r.install(0, 1, 0xa, append(flowtable.AppendTunOptions(nil, someOptions), oam(), toTunnel(77))...)
	r.install(1, 1, 0xb, append(flowtable.AppendTunOptions(nil, someOptions[:8]), toTunnel(77))...)
	r.install(2, 1, 0xc, toTunnel(77))
	send := func(dst uint64) {
		r.inject(1, ethernet(dst, 300, 3))
		r.turn()
		r.inject(uplinkPort, r.tx(uplinkPort).TakeAll()...)
		r.turn()
	}
	send(0xa)
	up := r.mustUpcall(UpMiss)
	key := flowtable.OptionsKey{}
	meta := uint64(flowtable.TunOAM<<flowtable.TunFlagsShift | flowtable.TunCritical)
	if !bytes.Equal(up.Options, someOptions) || up.Key[flowtable.WTunOpts] != key.Hash(someOptions) || up.Key[flowtable.WTunMeta] != meta {
		t.Fatalf("options %x, hash %x, meta %x", up.Options, up.Key[flowtable.WTunOpts], up.Key[flowtable.WTunMeta])
	}
	mask := flowtable.Key{flowtable.WPort: 0xffffffff << 32, flowtable.WTunOpts: ^uint64(0)}
	r.command(AppendInstall(nil, 3, &up.Key, &mask, []flowtable.Action{output(2)}))
	r.command(AppendCommand(nil, CmdRetry, up.Arg, nil))
	r.turn()
	r.equal("after the answer", r.sh.Ports[2].TxPackets, 1)
	send(0xa)
	r.equal("with the same options", r.sh.Ports[2].TxPackets, 2)
	for _, c := range []struct {
		dst     uint64
		options []byte
	}{{0xb, someOptions[:8]}, {0xc, nil}} {
		send(c.dst)
		if up := r.mustUpcall(UpMiss); !bytes.Equal(up.Options, c.options) || up.Key[flowtable.WTunMeta] != 0 {
			t.Errorf("options %x, want %x; meta %x", up.Options, c.options, up.Key[flowtable.WTunMeta])
		}
	}
	r.equal("with other options", r.sh.Ports[2].TxPackets, 2)
}

// The ICMP error for a frame that is too long leaves room for the options to send.
func TestOptionsCountForLongFrames(t *testing.T) {
	r, _ := withGeneve(t, tunnel.TemplateReady)
	r.install(0, 1, 0xa, append(flowtable.AppendTunOptions(nil, someOptions), toTunnel(77))...)
	ip := &layers.IPv4{Version: 4, TTL: 9, Protocol: layers.IPProtocolUDP, Flags: layers.IPv4DontFragment,
		SrcIP: []byte{10, 0, 0, 1}, DstIP: []byte{10, 0, 0, 2}}
	udp := &layers.UDP{SrcPort: 1, DstPort: 2}
	udp.SetNetworkLayerForChecksum(ip)
	const room = 1514 - geneveHeaders - 14 - 12 // for the inner IP packet
	r.inject(1, tooLong(t, room-27, ethernetTo(layers.EthernetTypeIPv4), ip, udp), tooLong(t, room-28, ethernetTo(layers.EthernetTypeIPv4), ip, udp))
	r.turn()
	r.drops(map[packet.DropReason]uint64{packet.DropTooBigForTunnel: 1})
	answers := r.tx(1).TakeAll()
	if len(answers) != 1 || binary.BigEndian.Uint16(answers[0][14+20+6:]) != room {
		t.Errorf("%d answers: % x; want an MTU of %d", len(answers), answers, room)
	}
	if wire := r.tx(uplinkPort).TakeAll(); len(wire) != 1 || len(wire[0]) != 1514 {
		t.Errorf("%d frames on the wire", len(wire))
	}
}

func TestTunnelFieldsAllocateNothing(t *testing.T) {
	r, _ := withGeneve(t, tunnel.TemplateReady)
	r.install(0, 1, 0xa, append(flowtable.AppendTunOptions(nil, someOptions), oam(), toTunnel(77))...)
	r.install(1, vxlanPort, 0xa, output(2))
	r.tx(uplinkPort).Discard.Store(true)
	f := ethernet(0xa, 300, 3)
	if n := testing.AllocsPerRun(50, func() {
		r.rx(1).Inject(f)
		r.turn()
	}); n != 0 {
		t.Errorf("%v allocations, want 0", n)
	}
}

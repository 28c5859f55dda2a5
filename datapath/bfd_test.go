// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"testing"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"

	"weft/bfd"
	"weft/packet"
	"weft/packet/packettest"
	"weft/tunnel"
)

const bfdMS = 1_000_000

var bfdTimes = bfd.Config{MinTx: 200_000, MinRx: 200_000, Multiplier: 4}

// withBFD returns a worker with a tunnel and a session with the tunnel's remote.
func withBFD(t *testing.T, random uint32) *rig {
	t.Helper()
	r := withTunnel(t, tunnel.TemplateReady)
	r.w.fixed = r.w.now
	r.command(AppendTermination(nil, 0, &tunnel.Termination{Port: vxlanPort, VNI: 77, UDPPort: 4789, BFD: true}))
	r.beginBFD(random)
	return r
}

func (r *rig) beginBFD(random uint32) {
	r.t.Helper()
	r.command(AppendBFD(nil, 5, &BFDSet{Port: vxlanPort, Template: 1, VNI: 77, Remote: loopback.As16(), Config: bfdTimes, Discriminator: random}))
	r.turn()
	r.equal("refused", r.sh.Counters.CommandsRefused, 0)
}

func (r *rig) session() *BFDSession { return &r.sh.BFD[5] }

// wire runs two workers for ms milliseconds of their clocks and carries frames from one uplink to the
// other, in both directions if bothWays is true.
func wire(a, b *rig, ms int, bothWays bool) {
	for range ms {
		for _, r := range []*rig{a, b} {
			r.w.fixed += bfdMS
			r.turn()
		}
		sent := a.tx(uplinkPort).TakeAll()
		back := b.tx(uplinkPort).TakeAll()
		b.inject(uplinkPort, sent...)
		if bothWays {
			a.inject(uplinkPort, back...)
		}
	}
}

func (r *rig) wantState(event string, want bfd.State) {
	r.t.Helper()
	if s := r.session(); s.State != want {
		r.t.Fatalf("%s: %v, want %v", event, s.State, want)
	}
}

// All bits of a discriminator are random. It is never 0, and no other session has it.
func TestDiscriminators(t *testing.T) {
	table := NewBFDTable(make([]BFDSession, MaxBFD))
	table.sessions[3].Mine, table.sessions[4].Mine = 0xabcdef01, 0xabcdef02
	for random, want := range map[uint32]uint32{0x12345678: 0x12345678, 0xabcdef01: 0xabcdef03, 0: 1, ^uint32(0): ^uint32(0)} {
		if got := table.discriminator(random); got != want {
			t.Errorf("%#x becomes %#x, want %#x", random, got, want)
		}
	}
}

// The sessions of two workers come up. A silent remote takes them down. They stay up after
// a stall of the workers and in the next engine.
func TestBFD(t *testing.T) {
	a, b := withBFD(t, 0xabcdef00), withBFD(t, 0x12345600)
	wire(a, b, 2500, true)
	a.wantState("start", bfd.Up)
	b.wantState("start", bfd.Up)
	if a.session().Mine != 0xabcdef00 || a.session().Theirs != b.session().Mine {
		t.Errorf("discriminators %x and %x", a.session().Mine, a.session().Theirs)
	}
	// both workers stalled for three seconds
	a.w.fixed, b.w.fixed = a.w.fixed+3000*bfdMS, b.w.fixed+3000*bfdMS
	wire(a, b, 1000, true)
	a.wantState("after a stall", bfd.Up)
	b.wantState("after a stall", bfd.Up)
	// a command for the session arrives in the first pass after another stall
	a.w.fixed, b.w.fixed = a.w.fixed+3000*bfdMS, b.w.fixed+3000*bfdMS
	a.beginBFD(0xabcdef00)
	a.wantState("a command after a stall", bfd.Up)
	wire(a, b, 1000, true)
	b.wantState("a command after a stall", bfd.Up)

	// The next engine continues the session with a copy of its memory.
	next := withTunnel(t, tunnel.TemplateReady)
	next.command(AppendTermination(nil, 0, &tunnel.Termination{Port: vxlanPort, VNI: 77, UDPPort: 4789, BFD: true}))
	copy(next.sh.BFD, a.sh.BFD)
	next.w.fixed = a.w.fixed + 300*bfdMS
	next.beginBFD(0x77777700)
	wire(next, b, 1000, true)
	next.wantState("next engine", bfd.Up)
	b.wantState("next engine", bfd.Up)

	wire(next, b, 500, false)
	next.wantState("within the detection time", bfd.Up)
	wire(next, b, 500, false)
	next.wantState("silence", bfd.Down)
	b.wantState("silence", bfd.Down)
	if a, b := next.session().Diag, b.session().Diag; a != bfd.DetectionExpired || b != bfd.NeighborSignalDown {
		t.Errorf("diagnostics %v and %v", a, b)
	}
	for _, r := range []*rig{a, b, next} {
		r.drops(nil)
		r.equal("refused packets", r.session().Refused, 0)
	}
	r := b.session()
	b.equal("packets received through the port", b.sh.Ports[vxlanPort].RxPackets, r.Received)
	if sent := b.sh.Ports[vxlanPort].TxPackets; r.Received == 0 || sent != r.Sent {
		t.Errorf("%d packets received, %d sent, and %d through the port", r.Received, r.Sent, sent)
	}

	// The remote learns that control has ended the session. Without sessions the worker sends nothing.
	wire(next, b, 2500, true)
	b.wantState("the remote is heard again", bfd.Up)
	b.command(AppendBFD(nil, 5, &BFDSet{}))
	b.turn()
	next.inject(uplinkPort, b.tx(uplinkPort).TakeAll()...)
	next.turn()
	if s := next.session(); s.State != bfd.Down || s.TheirState != bfd.AdminDown {
		t.Errorf("the remote of an ended session: %v, which hears %v", s.State, s.TheirState)
	}
	if b.w.bfdDue != ^uint64(0) || *b.session() != (BFDSession{}) {
		t.Error("the session has not ended")
	}
}

// Sent packets have the headers that RFC 5881 and Open vSwitch require.
func TestBFDFrame(t *testing.T) {
	r := withBFD(t, 0xabcdef00)
	sent := r.tx(uplinkPort).TakeAll()
	if len(sent) != 1 {
		t.Fatalf("%d frames", len(sent))
	}
	p := gopacket.NewPacket(sent[0][14+20+8+8:], layers.LayerTypeEthernet, gopacket.Default)
	eth, ip := p.Layer(layers.LayerTypeEthernet).(*layers.Ethernet), p.Layer(layers.LayerTypeIPv4).(*layers.IPv4)
	udp, control := p.Layer(layers.LayerTypeUDP).(*layers.UDP), p.Layer(layers.LayerTypeBFD).(*layers.BFD)
	if eth.DstMAC.String() != "00:23:20:00:00:01" || eth.SrcMAC.String() != "02:00:00:00:00:01" || ip.TTL != 255 || ip.TOS != 0xc0 ||
		ip.SrcIP.String() != "169.254.1.1" || ip.DstIP.String() != "169.254.1.0" || udp.DstPort != 3784 || udp.SrcPort < 49152 {
		t.Error(p)
	}
	if control.State != layers.BFDStateDown || control.DetectMultiplier != 4 || control.DesiredMinTxInterval != 1_000_000 ||
		control.RequiredMinRxInterval != 200_000 || !control.ControlPlaneIndependent || control.MyDiscriminator != layers.BFDDiscriminator(r.session().Mine) {
		t.Error(p)
	}
	if outer := packet.IPv4(sent[0][14:34]); outer[8] != 255 || packet.Sum(outer) != 0xffff {
		t.Errorf("outer TTL %d, header % x", outer[8], outer)
	}
	if vni := binary.BigEndian.Uint32(sent[0][46:]) >> 8; vni != 77 {
		t.Errorf("VNI %d", vni)
	}
}

// Frames to the MAC address of BFD packets are dropped as bad-bfd unless they are packets of a session.
// They change no session, however many arrive. A tunnel without BFD treats them like other frames.
func TestBFDForeignFrames(t *testing.T) {
	a, b := withBFD(t, 0xabcdef00), withBFD(t, 0x12345600)
	wire(a, b, 2500, true)
	a.wantState("start", bfd.Up)
	b.w.fixed += 250 * bfdMS
	b.turn()
	sent := b.tx(uplinkPort).TakeAll()
	if len(sent) != 1 {
		t.Fatalf("%d frames", len(sent))
	}
	const inner = 14 + 20 + 8 + 8
	edit := func(offset int, v ...byte) []byte {
		f := bytes.Clone(sent[0])
		copy(f[inner+offset:], v)
		ip := packet.IPv4(f[inner+14:][:20])
		if offset != 24 {
			ip.SetChecksum(0)
			ip.SetChecksum(packet.Checksum(ip))
		}
		return f
	}
	otherRemote := bytes.Clone(sent[0])
	outer := packet.IPv4(otherRemote[14:34])
	outer[15]++
	outer.SetChecksum(0)
	outer.SetChecksum(packet.Checksum(outer))
	bad := [][]byte{
		otherRemote,
		edit(12, 0x86, 0xdd), edit(14, 0x46), edit(20, 0x20), edit(22, 64), edit(23, 6), edit(24, 1, 2), // IP header
		edit(36, 0, 53), edit(38, 0, 7), edit(40, 1, 2), // UDP header
		edit(42, 0), edit(44, 0), edit(45, 23), edit(45, 25), edit(46, 0, 0, 0, 0), edit(50, 0, 0, 0, 1), edit(43, 0x44), edit(43, 0xc5), // BFD
		edit(43, 0x40, 4, 24, 1, 2, 3, 4, 0, 0, 0, 0), // "I know no session", from another discriminator
		sent[0][:len(sent[0])-1],
	}
	before := *a.session()
	drops := uint64(0)
	for range 5 {
		for i, f := range bad {
			a.inject(uplinkPort, f)
			a.turn()
			if i < len(bad)-1 { // the last frame is too short for its outer headers, too
				drops++
			}
			if got := a.sh.Counters.Drops[packet.DropBadBFD]; got != drops {
				t.Fatalf("frame %d: %d dropped as bad-bfd, want %d", i, got, drops)
			}
		}
	}
	after := *a.session()
	if after.Guessed != 5 {
		t.Errorf("%d packets with a wrong discriminator, want 5", after.Guessed)
	}
	after.Refused, after.dueNS, after.Guessed, after.Unauthentic = before.Refused, before.dueNS, before.Guessed, before.Unauthentic
	if after != before {
		t.Errorf("%+v\nwas %+v", after, before)
	}
	a.inject(uplinkPort, sent...) // accepted, although the limit of other packets is reached
	a.turn()
	a.equal("received", a.session().Received, before.Received+1)
	for range 100 {
		a.inject(uplinkPort, sent...)
		a.turn()
	}
	a.equal("received within the limit", a.session().Received, before.Received+bfdBurst)

	plain := withTunnel(t, tunnel.TemplateReady)
	plain.inject(uplinkPort, sent...)
	plain.turn()
	plain.mustUpcall(UpMiss)
}

// Forged packets without a discriminator, from the remote's address and beyond the limit of such
// packets, do not keep a session down.
func TestBFDFloodOfGreetings(t *testing.T) {
	a, b := withBFD(t, 0xabcdef00), withBFD(t, 0x12345600)
	greeting := b.tx(uplinkPort).TakeAll()[0]
	a.tx(uplinkPort).TakeAll() // the flood began before the session
	const mine = 14 + 20 + 8 + 8 + bfdHeaders + 4
	for i := range uint32(4000) {
		for j := range uint32(2) {
			forged := bytes.Clone(greeting)
			binary.BigEndian.PutUint32(forged[mine:], (2*i+j+1)*0x9e3779b1)
			a.inject(uplinkPort, forged)
		}
		a.turn()
		wire(a, b, 1, true)
	}
	a.wantState("a flood", bfd.Up)
	b.wantState("a flood at its remote", bfd.Up)
}

// forge returns a frame with a BFD packet that ends the session with the discriminator "yours". The packet
// seems to come from the sender of the frame "like".
func forge(like []byte, yours uint32) []byte {
	f := bytes.Clone(like)
	const at = 14 + 20 + 8 + 8 + bfdHeaders
	f[at+1] = byte(bfd.Down)<<6 | f[at+1]&0x3f
	binary.BigEndian.PutUint32(f[at+8:], yours)
	return f
}

// An attacker who guesses discriminators does not end a session, even with a right guess. While somebody
// guesses, a packet of the true remote ends the session only when the remote has repeated it.
// Otherwise it ends the session at once.
func TestBFDGuesses(t *testing.T) {
	a, b := withBFD(t, 0xabcdef00), withBFD(t, 0x12345600)
	wire(a, b, 2500, true)
	a.wantState("start", bfd.Up)
	b.w.fixed += 250 * bfdMS
	b.turn()
	like := b.tx(uplinkPort).TakeAll()[0]
	random := rand.New(rand.NewPCG(1, 2))
	flood := func() {
		for range 40 {
			a.inject(uplinkPort, forge(like, random.Uint32()))
		}
		a.turn()
	}
	for i := range 500 { // 20,000 wrong guesses, and a right one after every 1,000 of them
		flood()
		wire(a, b, 10, true)
		if i%25 == 0 { // the remote sends at least once in 200 ms

			a.inject(uplinkPort, forge(like, a.session().Mine))
			a.turn()
		}
		a.wantState("guesses", bfd.Up)
		b.wantState("guesses at the remote", bfd.Up)
	}
	s := a.session()
	if s.Guessed != 500*40 || s.Doubtful == 0 {
		t.Errorf("%d guesses and %d doubtful packets, want 20000 and some", s.Guessed, s.Doubtful)
	}
	flood()
	for range 2 {
		a.wantState("before the remote has repeated its end", bfd.Up)
		a.inject(uplinkPort, forge(like, s.Mine))
		a.turn()
	}
	a.wantState("the remote's end, repeated", bfd.Down)

	wire(a, b, 2500, true)
	a.wantState("up again", bfd.Up)
	for range bfdGuardNS / (100 * bfdMS) {
		wire(a, b, 100, true)
	}
	a.inject(uplinkPort, forge(like, s.Mine))
	a.turn()
	a.wantState("the remote's end while nobody guesses", bfd.Down)
}

// With authentication, a packet from a sender without the key changes nothing, even if the sender knows
// everything else. With OneHop, a packet that has passed a router changes nothing.
func TestBFDProtected(t *testing.T) {
	a, b := withTunnel(t, tunnel.TemplateReady), withTunnel(t, tunnel.TemplateReady)
	set := BFDSet{Port: vxlanPort, Template: 1, VNI: 77, Remote: loopback.As16(), Config: bfdTimes, OneHop: true}
	set.Config.Auth = bfd.Auth{Type: bfd.MeticulousKeyedSHA1, KeyID: 3}
	copy(set.Config.Auth.Key[:], "secret")
	for i, r := range []*rig{a, b} {
		r.w.fixed = r.w.now
		r.command(AppendTermination(nil, 0, &tunnel.Termination{Port: vxlanPort, VNI: 77, UDPPort: 4789, BFD: true}))
		set.Discriminator = uint32(i+1) << 20
		r.command(AppendBFD(nil, 5, &set))
		r.turn()
	}
	wire(a, b, 2500, true)
	a.wantState("start", bfd.Up)
	b.wantState("start at the remote", bfd.Up)
	b.w.fixed += 250 * bfdMS
	b.turn()
	sent := b.tx(uplinkPort).TakeAll()[0]
	before := *a.session()
	a.inject(uplinkPort, forge(sent, before.Mine)) // the sum no longer fits
	a.turn()
	routed := bytes.Clone(sent)
	ip := packet.IPv4(routed[14:34])
	ip[8]--
	ip.SetChecksum(0)
	ip.SetChecksum(packet.Checksum(ip))
	a.inject(uplinkPort, routed)
	a.turn()
	a.wantState("forgeries", bfd.Up)
	s := a.session()
	a.equal("unauthentic", s.Unauthentic, 1)
	a.equal("distant", s.Distant, 1)
	a.equal("received", s.Received, before.Received)
	for range 2 { // the second one is a replay
		a.inject(uplinkPort, sent)
		a.turn()
	}
	a.equal("received", s.Received, before.Received+1)
	a.equal("unauthentic", s.Unauthentic, 2)
	set.Config.Auth.KeyID++
	a.command(AppendBFD(nil, 5, &set)) // the key changes at one end
	a.turn()
	wire(a, b, 2500, true)
	a.wantState("different keys", bfd.Down)
}

// A worker with sessions allocates nothing.
func TestBFDAllocatesNothing(t *testing.T) {
	a, b := withBFD(t, 0xabcdef00), withBFD(t, 0x12345600)
	wire(a, b, 2500, true)
	a.wantState("start", bfd.Up)
	b.w.fixed += 250 * bfdMS
	b.turn()
	sent := b.tx(uplinkPort).TakeAll()[0]
	if n := testing.AllocsPerRun(50, func() {
		a.w.fixed += 210 * bfdMS
		a.rx(uplinkPort).Inject(sent)
		a.w.pass()
		a.tx(uplinkPort).TakeAll()
	}); n > 2 { // TakeAll makes a list and a frame
		t.Errorf("%v allocations", n)
	}
	a.wantState("end", bfd.Up)
}

// Commands with impossible values are refused.
func TestBFDCommand(t *testing.T) {
	r := withBFD(t, 1)
	good := BFDSet{Port: vxlanPort, Template: 1, Remote: loopback.As16(), Config: bfdTimes}
	badPort, badTime := good, good
	badPort.Port, badTime.Config.MinRx = 1<<20, 0
	for _, msg := range [][]byte{AppendBFD(nil, MaxBFD, &good), AppendBFD(nil, 0, &badPort), AppendBFD(nil, 0, &badTime), AppendBFD(nil, 0, &good)[:40]} {
		r.command(msg)
	}
	r.turn()
	r.equal("refused", r.sh.Counters.CommandsRefused, 4)
}

// A packet that another worker receives updates the session, and that worker answers.
func TestBFDAtAnotherWorker(t *testing.T) {
	a, b := withBFD(t, 0xabcdef00), withBFD(t, 0x12345600)
	second := withTunnel(t, tunnel.TemplateReady)
	second.w.config.BFD = a.w.config.BFD
	second.w.fixed = a.w.fixed
	second.command(AppendTermination(nil, 0, &tunnel.Termination{Port: vxlanPort, VNI: 77, UDPPort: 4789, BFD: true}))
	second.turn()
	for range 2500 {
		for _, r := range []*rig{a, second, b} {
			r.w.fixed += bfdMS
			r.turn()
		}
		sent, answers := a.tx(uplinkPort).TakeAll(), second.tx(uplinkPort).TakeAll()
		second.inject(uplinkPort, b.tx(uplinkPort).TakeAll()...)
		b.inject(uplinkPort, append(sent, answers...)...)
	}
	a.wantState("start", bfd.Up)
	b.wantState("start", bfd.Up)
	if a.sh.Ports[vxlanPort].TxPackets == 0 || second.sh.Ports[vxlanPort].TxPackets == 0 {
		t.Error("one of the workers sent nothing")
	}
	second.equal("sessions of its own", second.sh.BFD[5].Received, 0)
}

// If bfdPayload finds a payload in a frame, gopacket finds the same payload.
func FuzzBFDPayload(f *testing.F) {
	var b [packet.MaxHeader]byte
	var session BFDSession
	out := session.frame(bfd.Packet{State: bfd.Up, Mine: 1, Yours: 2, Multiplier: 3})
	writeBFD(b[:], &tunnel.Template{}, &out)
	valid := b[:bfdHeaders+bfd.Length]
	f.Add(valid, uint8(14))
	f.Add(append(valid, 0, 0, 0), uint8(128))
	f.Add(valid[:len(valid)-1], uint8(0))
	f.Fuzz(func(t *testing.T, frame []byte, header uint8) {
		if len(frame) > 200 {
			return
		}
		arena := packettest.NewArena(t, 1<<12)
		var batch packet.Batch
		payload := bfdPayload(&batch, arena.Add(&batch, bytes.Clone(frame), int(header), 50))
		if payload == nil {
			return
		}
		p := gopacket.NewPacket(frame, layers.LayerTypeEthernet, gopacket.NoCopy)
		ip, _ := p.Layer(layers.LayerTypeIPv4).(*layers.IPv4)
		udp, _ := p.Layer(layers.LayerTypeUDP).(*layers.UDP)
		if ip == nil || udp == nil || ip.TTL != 255 || udp.DstPort != 3784 || !bytes.Equal(udp.Payload, payload) {
			t.Fatalf("payload % x of %v", payload, p)
		}
	})
}

// SPDX-License-Identifier: Apache-2.0

package offload

import (
	"encoding/binary"
	"flag"
	"math/rand"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"

	"weft/conntrack"
	"weft/flowtable"
	"weft/internal/cpu"
	"weft/packet"
	"weft/port/porttest"
	"weft/tunnel"
)

var frames = flag.Int("frames", 20_000, "number of frames of TestProgramsAgainstWorker")

func newTable(t testing.TB) *Table {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	table, err := New()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(table.Close)
	return table
}

// flow is a megaflow of the test, in the form of the worker.
type flow struct {
	slot      uint32
	key, mask flowtable.Key
	actions   []flowtable.Action
	out       Output
	encap     *Encap           // nil: no tunnel
	template  *tunnel.Template // template of encap
	ends      *conntrack.Lease // translation that is done before the actions; nil: none
	installed bool
}

func (f *flow) matches(k *flowtable.Key) bool {
	for i := range k {
		if (k[i]^f.key[i])&f.mask[i] != 0 {
			return false
		}
	}
	return true
}

// twinPort is the input port of all frames.
const twinPort = 7

// twin compares the programs, in the kernel, with the worker's functions on the same flows.
type twin struct {
	*testing.T
	rng   *rand.Rand
	table *Table
	flows []flow
	rx    *porttest.Rx
	batch *packet.Batch
	// lookup is the filter of the table. tagged and ingress are its filter and its ingress program, for
	// test runs of frames with a VLAN tag.
	lookup, tagged, ingress *ebpf.Program
	hits                    int
	hitsOf                  map[string]int
	// terminations are the tunnels of an uplink as the worker looks them up; nil: the port is a device. ends
	// has the same tunnels.
	terminations *tunnel.Terminations
	ends         map[uint32]tunnel.Termination
	sum          map[uint32]*[2]uint64 // frames and bytes of each slot
	counts       *Counts
	connections  []connection
}

// The programs forward and change random frames as the worker's extraction, a search of all flows and the
// worker's actions would. They leave only those frames to the worker that the package's documentation
// names. Their counts are right.
func TestProgramsAgainstWorker(t *testing.T) {
	w := &twin{T: t, table: newTable(t), hitsOf: map[string]int{"IPv6": 0, "ICMP": 0, "tags": 0, "padding": 0, "tunnels": 0, "connections": 0, "translations": 0, "translations over IPv6": 0}}
	w.lookup = w.table.filter
	w.run()
}

// toSocket and dropped are the instructions of a device's programs for frames without a flow.
var (
	toSocket = asm.Instructions{asm.Mov.Imm(asm.R0, takeWhole), asm.Return()}
	dropped  = asm.Instructions{asm.Mov.Imm(asm.R0, tcxDrop), asm.Return()}
)

// run compares what the programs and the worker do with many random frames.
func (w *twin) run() {
	t := w.T
	w.rng, w.batch, w.sum = rand.New(rand.NewSource(int64(*frames))), new(packet.Batch), map[uint32]*[2]uint64{}
	w.tagged, w.ingress = w.loadTest(w.table.filterProgram(toSocket)), w.loadTest(retagged(w.table.ingressProgram(dropped)))
	w.rx = porttest.NewRx(porttest.Options{Slots: 1, SlotBytes: 4096})
	defer w.rx.Close()
	runtime.LockOSThread() // never unlocked: the pinned thread ends with the test
	allowed, err := cpu.Allowed()
	if err != nil {
		t.Fatal(err)
	}
	if err := cpu.Pin(allowed[0]); err != nil { // the verdict is in memory of one processor, so both programs must run there
		t.Fatal(err)
	}
	counts, err := OpenCounts(w.table.FDs())
	if err != nil {
		t.Fatal(err)
	}
	defer counts.Close()
	w.counts = counts
	for n := range *frames {
		if n%1000 == 0 {
			w.change()
		}
		w.frame(w.drawConnected())
	}
	w.Logf("%d hits %v, %d connections", w.hits, w.hitsOf, len(w.connections))
	if w.hits < *frames/20 {
		t.Errorf("%d of %d frames hit: the test is void", w.hits, *frames)
	}
	for what, n := range w.hitsOf {
		if n < *frames/2000 {
			t.Errorf("%d frames of %s hit: the test is void", n, what)
		}
	}
	w.checkCounts()
}

// change replaces all flows by new random ones, and the tunnels of an uplink, too.
func (w *twin) change() {
	w.flows = nil
	w.checkCounts()
	for slot := range uint32(40) {
		w.table.Remove(slot)
	}
	if w.terminations != nil {
		w.changeEnds()
	}
	for slot := range uint32(40) {
		if w.rng.Intn(3) == 0 {
			continue
		}
		f := flow{slot: slot, out: Output{Port: slot + 1, Ifindex: 1 + w.rng.Intn(3), MTU: []int{100, 1500, 9000}[w.rng.Intn(3)], Veth: w.rng.Intn(8) > 0}}
		f.mask[flowtable.WPort] = ^uint64(0)
		for i := flowtable.WPort + 1; i < keyWords; i++ {
			f.mask[i] = []uint64{0, ^uint64(0), 0xffff << 48, 0xffff}[w.rng.Intn(4)]
			if w.terminations != nil && w.rng.Intn(5) > 0 { // a smaller mask, so that more frames match
				f.mask[i] = 0
			}
		}
		frame := w.drawAny()
		if _, ok := w.extract(frame, &f.key); !ok {
			continue
		}
		if w.rng.Intn(8) == 0 {
			f.mask[flowtable.WTunMeta], f.key[flowtable.WTunMeta] = 1, uint64(w.rng.Intn(2))
		}
		for i := range f.key {
			f.key[i] &= f.mask[i]
		}
		if old := w.search(&f.key); old != nil && old.mask == f.mask {
			continue // two megaflows with the same mask must have different keys
		}
		f.actions = w.drawActions(&f)
		rewrite, to, known := Plan(f.actions)
		if !known || to.Port != f.out.Port {
			w.Fatalf("the programs do not know the actions %v", f.actions)
		}
		if w.terminations == nil && w.rng.Intn(2) == 0 && rewrite.bits&rewritePush == 0 {
			w.intoTunnel(&f, rewrite)
		} else {
			f.installed = w.table.Install(slot, &f.key, &f.mask, rewrite, f.out)
		}
		if f.installed && f.key[flowtable.WTunMeta] != 0 {
			w.Fatal("a flow of tunnels with options is in the kernel")
		}
		w.flows = append(w.flows, f)
	}
	w.changeConnections()
	w.table.Pause(w.rng.Intn(10) == 0)
}

// intoTunnel installs flow f with a tunnel instead of its output.
func (w *twin) intoTunnel(f *flow, rewrite Rewrite) {
	f.template = drawTemplate(w.T, w.rng, f.out.MTU+ethernetLen+outerLen)
	f.encap = &Encap{Template: f.slot, VNI: uint32(w.rng.Intn(1 << 24)), Port: 9}
	f.actions = f.actions[:len(f.actions)-1]
	outer, known := NewOuter(f.template, f.out)
	if !known {
		w.Fatalf("the programs do not know the template %+v", f.template)
	}
	f.installed = w.table.InstallTunnel(f.slot, &f.key, &f.mask, rewrite, *f.encap)
	w.table.SetOuter(f.slot, &outer)
}

func drawTemplate(t *testing.T, r *rand.Rand, mtu int) *tunnel.Template {
	made, err := tunnel.Build(tunnel.Params{Port: 3, MTU: uint16(mtu), SrcMAC: [6]byte{2, 1}, DstMAC: [6]byte{2, 2}, TOS: uint8(r.Intn(256)),
		Local: netip.AddrFrom4([4]byte{172, 16, 0, byte(r.Intn(256))}), Remote: netip.AddrFrom4([4]byte{172, 16, byte(r.Intn(256)), 2}),
		DontFragment: r.Intn(2) == 0, UDPPort: 4789, PortRange: uint16(r.Intn(20000)), PortBase: uint16(r.Intn(40000))})
	if err != nil {
		t.Fatal(err)
	}
	return &made
}

func (w *twin) search(k *flowtable.Key) *flow {
	for i := range w.flows {
		if w.flows[i].matches(k) {
			return &w.flows[i]
		}
	}
	return nil
}

// draw returns a random frame, mostly of TCP and UDP between few addresses.
func (w *twin) draw() []byte {
	r := w.rng
	f := append([]byte{0, 0, 0, 0, 0, byte(r.Intn(2)), 0, 0, 0, 0, 0, byte(r.Intn(2))}, w.drawPacket()...)
	switch r.Intn(10) {
	case 0: // any change
		f[r.Intn(min(len(f), 80))] = byte(r.Intn(256))
	case 1: // padding
		f = append(f, make([]byte, r.Intn(20))...)
	case 2: // a truncated frame
		f = f[:15+r.Intn(len(f)-15)]
	}
	for range []int{0, 0, 0, 0, 1, 1, 1, 2}[r.Intn(8)] {
		tag := []byte{0x81, 0, byte(r.Intn(4)) << 4, byte(r.Intn(3))}
		if r.Intn(4) == 0 {
			tag[0], tag[1] = 0x88, 0xa8
		}
		f = slices.Insert(f, 12, tag...)
	}
	return f
}

// drawPacket returns a random EtherType and the bytes of the frame after it.
func (w *twin) drawPacket() []byte {
	r := w.rng
	payload := []int{0, 1, 20, 60, 1460, r.Intn(2000)}[r.Intn(6)]
	if r.Intn(16) == 0 {
		etherType := []uint16{0x88b5, 0x88b5, uint16(r.Intn(1 << 16)), packet.EtherTypeARP, packet.EtherTypeMPLS, 0x100}[r.Intn(6)]
		return append(binary.BigEndian.AppendUint16(nil, etherType), make([]byte, 20+payload)...)
	}
	v6 := r.Intn(3) == 0
	proto := []byte{packet.ProtoTCP, packet.ProtoUDP, packet.ProtoUDP, packet.ProtoTCP, packet.ProtoICMP, packet.ProtoICMPv6, byte(r.Intn(256))}[r.Intn(7)]
	l4 := make([]byte, 8+payload)
	if proto == packet.ProtoTCP {
		l4 = make([]byte, 20+4*r.Intn(3)+payload)
		l4[12], l4[13] = byte((len(l4)-payload)/4)<<4, tcpFlags[r.Intn(len(tcpFlags))]
	}
	l4[1], l4[3] = byte(r.Intn(2)), byte(r.Intn(2))
	switch proto {
	case packet.ProtoUDP:
		binary.BigEndian.PutUint16(l4[4:], uint16(len(l4)))
	case packet.ProtoICMP, packet.ProtoICMPv6:
		l4[0] = byte(128 + r.Intn(10))
	}
	ttl := byte(63 + r.Intn(2))
	if r.Intn(12) == 0 { // a TTL that ends here or at the next hop
		ttl = byte(r.Intn(4))
	}
	if v6 {
		ip := make([]byte, 2+packet.IPv6Len)
		ip[0], ip[1], ip[2], ip[3], ip[5], ip[8], ip[9] = 0x86, 0xdd, 0x60, byte(r.Intn(2))<<4, byte(r.Intn(2)), proto, ttl
		ip[25], ip[41] = byte(r.Intn(2)), byte(r.Intn(2))
		binary.BigEndian.PutUint16(ip[6:], uint16(len(l4)))
		return append(ip, l4...)
	}
	ip := []byte{0x08, 0, 0x45, byte(r.Intn(2)), 0, 0, 0, 0, 0, 0, ttl, proto, byte(r.Intn(256)), byte(r.Intn(256)),
		10, 0, 0, byte(r.Intn(2)), 10, 0, 0, byte(r.Intn(2))}
	binary.BigEndian.PutUint16(ip[4:], uint16(packet.IPv4Len+len(l4)))
	if r.Intn(12) == 0 { // a fragment
		ip[8+r.Intn(2)] |= 1 << r.Intn(8)
	}
	return append(ip, l4...)
}

// extract returns the key that the worker extracts and the length after trimming. It returns
// false if the worker drops the frame.
func (w *twin) extract(frame []byte, k *flowtable.Key) (length int, ok bool) {
	if !w.rx.Inject(frame) {
		w.Fatal("receive queue full")
	}
	b := w.batch
	b.Reset()
	b.Port = twinPort
	if n := w.rx.Recv(b); n != 1 {
		w.Fatal("no frame")
	}
	ok = w.parse(k)
	length = b.Frames[0].Len()
	w.rx.Release()
	return length, ok
}

// parse decapsulates the frame of the batch if it is of an uplink, and extracts its key.
func (w *twin) parse(k *flowtable.Key) bool {
	b, f := w.batch, &w.batch.Frames[0]
	if w.terminations == nil {
		return flowtable.Extract(b, f, k) == packet.DropNone
	}
	var words [flowtable.TunnelWords]uint64
	var options flowtable.TunOptions
	if w.terminations.Decapsulate(b, f, &words, &options) != packet.DropNone || flowtable.Extract(b, f, k) != packet.DropNone {
		return false
	}
	*k.Tunnel() = words
	return true
}

// known reports whether the programs must accept this frame without outer headers, by the package's
// documentation.
func known(frame []byte, k *flowtable.Key) bool {
	at := packet.EthernetLen
	if packet.IsVLAN(binary.BigEndian.Uint16(frame[12:])) {
		at += packet.VLANLen
	}
	proto := k[flowtable.WIP] >> flowtable.ProtoShift
	transport := proto == packet.ProtoTCP || proto == packet.ProtoUDP
	switch etherType := binary.BigEndian.Uint16(frame[at-2:]); etherType {
	case packet.EtherTypeIPv4:
		return frame[at] == 0x45 && !k.IsFragment() && (transport || proto == packet.ProtoICMP)
	case packet.EtherTypeIPv6:
		discovery := k[flowtable.WL4]>>flowtable.TPSrcShift == packet.NDSolicitation || k[flowtable.WL4]>>flowtable.TPSrcShift == packet.NDAdvertisement
		return frame[at+6] == byte(proto) && (transport || proto == packet.ProtoICMPv6 && !discovery)
	default:
		return etherType >= 0x600 && !slices.Contains(workerTypes, int32(etherType))
	}
}

// knows reports whether the programs must accept a frame that arrives at the port, by the package's
// documentation.
func (w *twin) knows(frame []byte, k *flowtable.Key) bool {
	if w.terminations == nil {
		return known(frame, k)
	}
	return w.knowsOuter(frame, k) && tagLen(frame[outerLen:]) == 0 && k[flowtable.WIP] != 0 && known(frame[outerLen:], k)
}

// drawAny returns a random frame as it arrives at the port: from a tunnel if the port is an uplink.
func (w *twin) drawAny() []byte {
	if w.terminations != nil {
		return w.drawOuter(w.draw())
	}
	return w.draw()
}

// tagLen returns the length in bytes of the VLAN tag that the kernel removes from the frame before it runs
// the programs; 0: no tag.
func tagLen(frame []byte) int {
	if packet.IsVLAN(binary.BigEndian.Uint16(frame[12:])) {
		return packet.VLANLen
	}
	return 0
}

// untagged puts instructions before a program that move a VLAN tag from the frame to the context. The kernel
// does this before it runs a program, but not in test runs.
func untagged(program asm.Instructions) asm.Instructions {
	const tag = -8
	return append(asm.Instructions{
		asm.Mov.Reg(asm.R6, asm.R1),
		asm.LoadMem(asm.R2, asm.R1, skbProtocol, asm.Word), asm.HostTo(asm.BE, asm.R2, asm.Half),
		asm.JEq.Imm(asm.R2, packet.EtherTypeVLAN, "take off"), asm.JNE.Imm(asm.R2, packet.EtherTypeSVLAN, "begin"),
		asm.Mov.Imm(asm.R2, 12).WithSymbol("take off"),
		asm.Mov.Reg(asm.R3, asm.RFP), asm.Add.Imm(asm.R3, tag), asm.Mov.Imm(asm.R4, 4), asm.FnSkbLoadBytes.Call(),
		asm.JNE.Imm(asm.R0, 0, "begin"),
		asm.Mov.Reg(asm.R1, asm.R6), asm.FnSkbVlanPop.Call(),
		asm.Mov.Reg(asm.R1, asm.R6), asm.LoadMem(asm.R2, asm.RFP, tag, asm.Half),
		asm.LoadMem(asm.R3, asm.RFP, tag+2, asm.Half), asm.HostTo(asm.BE, asm.R3, asm.Half), asm.FnSkbVlanPush.Call(),
		asm.Mov.Reg(asm.R1, asm.R6).WithSymbol("begin")}, program...)
}

// retagged adds instructions to an ingress program that put the VLAN tag back into the frame before the
// output, as the kernel does. They insert a second tag, which makes the kernel write the first.
func retagged(program asm.Instructions) (p asm.Instructions) {
	for _, i := range program {
		if i.Symbol() == "send" {
			p = append(p,
				asm.LoadMem(asm.R1, asm.R6, skbVLANPresent, asm.Word).WithSymbol("send"), asm.JEq.Imm(asm.R1, 0, "done"),
				asm.Mov.Reg(asm.R1, asm.R6), asm.Mov.Imm(asm.R2, 0), asm.Mov.Imm(asm.R3, 0), asm.FnSkbVlanPush.Call())
			i = i.WithSymbol("done")
		}
		p = append(p, i)
	}
	return p
}

// loadTest loads program p for test runs, in which frames may have a VLAN tag.
func (w *twin) loadTest(p asm.Instructions) *ebpf.Program {
	w.Helper()
	program, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.SchedCLS, License: "Apache-2.0", Instructions: untagged(p)})
	if err != nil {
		w.Fatal(err)
	}
	w.Cleanup(func() { program.Close() })
	return program
}

// frame compares what the programs and the worker do with one frame.
func (w *twin) frame(frame []byte) {
	if len(frame) < 20 && tagLen(frame) != 0 {
		return // the kernel drops it when it removes the tag
	}
	var k flowtable.Key
	length, ok := w.extract(frame, &k)
	taken := w.filter(frame)
	if !w.runs(frame) {
		return
	}
	out := make([]byte, len(frame)+64)
	verdict := &ebpf.RunOptions{Data: frame, DataOut: out}
	result, err := w.ingress.Run(verdict)
	if err != nil {
		w.Fatalf("%v: %d %x", err, len(frame), frame)
	}
	hit := w.expected(&k)
	isKnown := ok && w.knows(frame, &k)
	if w.table.paused || !isKnown {
		hit = nil
	}
	const redirected = 7 // TC_ACT_REDIRECT
	if c := w.connectionOf(&k); c != nil && isKnown && !w.table.paused && (taken == takeNone) == (result == redirected) {
		w.checkConnection(c, frame, &k, length, taken == takeNone, verdict.DataOut)
		return
	}
	switch {
	case taken == takeWhole && result == tcxDrop:
		if hit != nil && length-tagLen(frame) <= hit.out.MTU+ethernetLen && w.perform(frame, hit, nil) != nil && !w.leaves(hit, &k) {
			w.Fatalf("the worker gets a frame of slot %d: %x", hit.slot, frame)
		}
	case taken == takeNone && result == redirected:
		w.hits++
		w.count(frame, &k, length)
		slot := w.counted(uint64(length))
		f := w.bySlot(slot)
		if f == nil || !f.matches(&k) || !isKnown || length-tagLen(frame) > f.out.MTU+ethernetLen {
			w.Fatalf("slot %d gets a frame of others: %x", slot, frame)
		}
		if f.encap != nil {
			w.hitsOf["tunnels"]++
		}
		if want := w.perform(frame, f, verdict.DataOut); string(verdict.DataOut) != string(want) {
			w.Fatalf("the frame %x becomes %x, want %x, by %v, tunnel %+v", frame, verdict.DataOut, want, f.actions, f.encap)
		}
	default:
		w.Fatalf("filter %d, ingress program %d: %x", taken, result, frame)
	}
}

// count notes in hitsOf which properties a frame has that the programs have forwarded.
func (w *twin) count(frame []byte, k *flowtable.Key, length int) {
	for what, is := range map[string]bool{
		"IPv6": k.EtherType() == packet.EtherTypeIPv6, "ICMP": k[flowtable.WIP]>>flowtable.ProtoShift == packet.ProtoICMP,
		"tags": tagLen(frame) != 0, "padding": length+int(w.table.received()) < len(frame), "congestion": w.terminations != nil && frame[headerTOS]&3 == 3,
	} {
		if _, has := w.hitsOf[what]; is && has {
			w.hitsOf[what]++
		}
	}
}

// leaves reports whether the programs must leave a frame with key k, which matches flow f, to the worker:
// a frame without an IP header if f decrements the TTL or has a tunnel, or a frame with a VLAN tag if f
// has a tunnel.
func (w *twin) leaves(f *flow, k *flowtable.Key) bool {
	tagged := k[flowtable.WEthSrc]&flowtable.VLANPresent != 0 && !slices.Contains(f.actions, flowtable.Action{Op: flowtable.OpPopVLAN})
	return f.encap != nil && tagged || k[flowtable.WIP] == 0 && (f.encap != nil || slices.Contains(f.actions, flowtable.Action{Op: flowtable.OpDecTTL}))
}

// runs reports whether Linux 6.18 does a test run of an ingress program with this frame. It refuses frames
// that are too short.
func (w *twin) runs(frame []byte) bool {
	if binary.BigEndian.Uint16(frame[12:]) == packet.EtherTypeIPv6 {
		return len(frame) >= packet.EthernetLen+packet.IPv6Len
	}
	return len(frame) >= packet.EthernetLen+packet.VLANLen+packet.IPv4Len
}

// filter runs the filter on a frame and returns the filter's result. A test run of a socket filter first
// removes an Ethernet header, which the kernel does not do for a packet socket. It cannot move a VLAN tag, so
// frames with a tag run through the same instructions in a program of another type.
func (w *twin) filter(frame []byte) uint32 {
	program, data := w.lookup, append(make([]byte, 14), frame...)
	if w.terminations == nil && tagLen(frame) != 0 && w.runs(frame) {
		program, data = w.tagged, frame
	}
	taken, err := program.Run(&ebpf.RunOptions{Data: data})
	if err != nil {
		w.Fatalf("%v: %x", err, frame)
	}
	return taken
}

// drawActions returns random actions for flow f that Plan accepts.
func (w *twin) drawActions(f *flow) (list []flowtable.Action) {
	for range w.rng.Intn(4) {
		a := flowtable.Action{Op: []flowtable.Op{flowtable.OpSetEthDst, flowtable.OpSetEthSrc, flowtable.OpDecTTL}[w.rng.Intn(3)]}
		if a.Op != flowtable.OpDecTTL {
			a.U64 = w.rng.Uint64() >> 16
		} else if slices.Contains(list, a) {
			continue
		}
		list = append(list, a)
	}
	if f.mask[flowtable.WEthSrc]&flowtable.VLANPresent != 0 {
		list = append(list, w.drawTag(f.key[flowtable.WEthSrc]&flowtable.VLANPresent != 0)...)
	}
	w.rng.Shuffle(len(list), func(i, j int) {
		if list[i].Op > flowtable.OpSetVLAN && list[j].Op > flowtable.OpSetVLAN {
			list[i], list[j] = list[j], list[i]
		}
	})
	return append(list, flowtable.Action{Op: flowtable.OpOutput, U32: f.out.Port})
}

// drawTag returns random actions on the VLAN tag of frames that have one or none.
func (w *twin) drawTag(tagged bool) []flowtable.Action {
	push := flowtable.Action{Op: flowtable.OpPushVLAN, U16: []uint16{packet.EtherTypeVLAN, packet.EtherTypeSVLAN}[w.rng.Intn(2)], U32: uint32(w.rng.Intn(1 << 16))}
	pop, set := flowtable.Action{Op: flowtable.OpPopVLAN}, flowtable.Action{Op: flowtable.OpSetVLAN, U32: uint32(w.rng.Intn(1 << 16))}
	if tagged {
		return [][]flowtable.Action{nil, {pop}, {set}, {pop, push}}[w.rng.Intn(4)]
	}
	return [][]flowtable.Action{nil, {push}}[w.rng.Intn(2)]
}

// perform returns the frame as the worker sends it after the actions of flow, or nil if the worker drops the
// frame. got is the frame that the programs have sent, if any. perform copies the random IPv4 identification
// from it.
func (w *twin) perform(frame []byte, flow *flow, got []byte) []byte {
	var k flowtable.Key
	if !w.rx.Inject(frame) {
		w.Fatal("receive queue full")
	}
	b := w.batch
	b.Reset()
	b.Port = twinPort
	if n := w.rx.Recv(b); n != 1 {
		w.Fatal("no frame")
	}
	defer w.rx.Release()
	f := &b.Frames[0]
	if !w.parse(&k) {
		return nil
	}
	if flow.ends != nil {
		w.translate(f, flow.ends)
		if flowtable.Extract(b, f, &k) != packet.DropNone {
			w.Fatal("the translated frame is invalid")
		}
	}
	for i := range flow.actions {
		switch a := &flow.actions[i]; a.Op {
		case flowtable.OpSetEthDst:
			f.SetEthDst(a.U64)
		case flowtable.OpSetEthSrc:
			f.SetEthSrc(a.U64)
		case flowtable.OpDecTTL:
			if f.DecTTL() != packet.DropNone {
				return nil
			}
		case flowtable.OpPushVLAN:
			if f.PushVLAN(a.U16, uint16(a.U32)) != packet.DropNone {
				w.Fatal("no headroom")
			}
		case flowtable.OpPopVLAN:
			f.PopVLAN()
		case flowtable.OpSetVLAN:
			f.SetVLAN(uint16(a.U32))
		}
	}
	if flow.encap != nil {
		if len(got) > outerLen {
			flow.template.ID = binary.BigEndian.Uint16(got[headerID:])
		}
		if flow.template.Push(f, flow.encap.VNI, tunnel.FlowHash(&k), tunnel.InnerTOS(f), nil) != packet.DropNone {
			return nil
		}
	}
	out := make([]byte, f.Len())
	b.Gather(f, out)
	return out
}

// translate gives frame f the translation of l, as the tracker does.
func (w *twin) translate(f *packet.Frame, l *conntrack.Lease) {
	to := &l.NewAddresses
	if !l.IPv6 {
		if !f.SetIPv4Ends(to[0], l.NewPorts) {
			w.Fatal("not translated")
		}
		return
	}
	f.SetIPv6Src(to[0], to[1])
	f.SetIPv6Dst(to[2], to[3])
	f.SetTpSrc(uint16(l.NewPorts >> 16))
	f.SetTpDst(uint16(l.NewPorts))
}

// Plan refuses all other actions, and an output that is not the last action.
func TestPlanRefuses(t *testing.T) {
	out := flowtable.Action{Op: flowtable.OpOutput, U32: 1}
	ttl := flowtable.Action{Op: flowtable.OpDecTTL}
	push, pop, set := flowtable.Action{Op: flowtable.OpPushVLAN, U16: packet.EtherTypeVLAN}, flowtable.Action{Op: flowtable.OpPopVLAN}, flowtable.Action{Op: flowtable.OpSetVLAN}
	for _, list := range [][]flowtable.Action{
		nil, {ttl}, {out, out}, {ttl, ttl, out}, {{Op: flowtable.OpSetTTL, U32: 5}, out}, {{Op: flowtable.OpDrop}}, {out, ttl},
		{push, push, out}, {pop, pop, out}, {set, push, out}, {push, pop, out}, {{Op: flowtable.OpPushVLAN, U16: 0x9100}, out},
	} {
		if _, _, known := Plan(list); known {
			t.Errorf("%v is known", list)
		}
	}
}

// expected returns the installed flow that key k matches, or nil if k matches none or several.
func (w *twin) expected(k *flowtable.Key) (match *flow) {
	for i := range w.flows {
		if f := &w.flows[i]; f.installed && f.matches(k) {
			if match != nil {
				return nil
			}
			match = f
		}
	}
	return match
}

func (w *twin) bySlot(slot uint32) *flow {
	for i := range w.flows {
		if w.flows[i].slot == slot {
			return &w.flows[i]
		}
	}
	return nil
}

// counted returns the slot whose counts have grown by one frame of this length. There must be one.
func (w *twin) counted(length uint64) uint32 {
	for i := range w.flows {
		slot := w.flows[i].slot
		r, n := &w.table.memory.rows[slot], w.sum[slot]
		if n == nil {
			n = new([2]uint64)
			w.sum[slot] = n
		}
		if r.packets.Load() == n[0]+1 && r.bytes.Load() == n[1]+length && r.usedNS.Load() != 0 {
			n[0], n[1] = n[0]+1, n[1]+length
			return slot
		}
	}
	w.Fatal("the frame is not counted")
	return 0
}

// checkCounts reads and clears the counts of all slots. It compares them with the frames that the programs
// have forwarded.
func (w *twin) checkCounts() {
	c := Counts{memory: w.table.memory}
	got := 0
	for slot, found := c.NextOffloaded(0); found; slot, found = c.NextOffloaded(slot + 1) {
		if _, has := w.table.installed[slot]; !has {
			w.Fatalf("slot %d has no flow", slot)
		}
		got++
	}
	if got != w.table.Flows() {
		w.Fatalf("%d slots of %d flows", got, w.table.Flows())
	}
	for slot, n := range w.sum {
		if c := c.TakeCounts(slot); c.Packets != n[0] || c.Bytes != n[1] {
			w.Fatalf("slot %d has counted %d frames of %d bytes, want %d of %d", slot, c.Packets, c.Bytes, n[0], n[1])
		}
	}
	w.sum = map[uint32]*[2]uint64{}
}

// A large TCP frame goes to an output if its segments fit. Other large frames go to the worker.
func TestLargeFramesByTheirSegments(t *testing.T) {
	table := newTable(t)
	k, mask := flowtable.Key{}, flowtable.Key{flowtable.WPort: ^uint64(0)}
	if !table.Install(3, &k, &mask, Rewrite{}, Output{Port: 2, Ifindex: 1, MTU: 1500}) {
		t.Fatal("the flow is not installed")
	}
	for _, c := range []struct {
		proto   byte
		segment uint32
		taken   uint32
	}{
		{packet.ProtoTCP, 1448, takeNone}, {packet.ProtoTCP, 1460, takeNone}, {packet.ProtoTCP, 1461, takeWhole},
		{packet.ProtoUDP, 1000, takeWhole}, {packet.ProtoTCP, 0, takeWhole},
	} {
		f := make([]byte, 14+14+3000)
		frame := f[14:]
		frame[12], frame[14], frame[23], frame[46] = 0x08, 0x45, c.proto, 5<<4
		binary.BigEndian.PutUint16(frame[16:], uint16(len(frame)-14))
		binary.BigEndian.PutUint16(frame[38:], uint16(len(frame)-34))
		taken, err := table.filter.Run(&ebpf.RunOptions{Data: f, Context: skb{GSOSize: c.segment}})
		if err != nil {
			t.Fatal(err)
		}
		if taken != c.taken {
			t.Errorf("protocol %d, segments of %d bytes: %d, want %d", c.proto, c.segment, taken, c.taken)
		}
	}
}

// skb is struct __sk_buff (include/uapi/linux/bpf.h) up to its field gso_size.
type skb struct {
	_       [skbGSOSize]byte
	GSOSize uint32
	_       [12]byte
}

// When another process takes a table over, the counts stay and the flows are deleted.
func TestAdopt(t *testing.T) {
	table := newTable(t)
	k, mask := flowtable.Key{}, flowtable.Key{flowtable.WPort: ^uint64(0)}
	for slot := range uint32(MaxMasks + 1) {
		mask[flowtable.WIPv4] = uint64(slot)
		if got, want := table.Install(slot, &k, &mask, Rewrite{}, Output{Port: 2, Ifindex: 1, MTU: 1500}), slot < MaxMasks; got != want {
			t.Fatalf("mask %d: installed %v", slot, got)
		}
	}
	table.memory.rows[2].packets.Store(5)
	table.SetEnds(NewEnds(map[uint32]tunnel.Termination{1: {Port: 1, VNI: 5, UDPPort: 4789}}))
	next, err := Adopt(porttest.Duplicates(t, table.FDs()), false)
	if err != nil {
		t.Fatal(err)
	}
	defer next.Close()
	counts, err := OpenCounts(next.FDs())
	if err != nil {
		t.Fatal(err)
	}
	defer counts.Close()
	if c := counts.TakeCounts(2); c.Packets != 5 {
		t.Errorf("counts %+v", c)
	}
	var first key
	if err := next.flows.NextKey(nil, &first); err == nil {
		t.Error("a flow is left")
	}
	if err := next.ends.NextKey(nil, new([endKeyBytes]byte)); err == nil {
		t.Error("the end of a tunnel is left")
	}
	if !next.Install(9, &k, &mask, Rewrite{}, Output{Port: 3, Ifindex: 1, MTU: 1500}) {
		t.Error("no room for a flow")
	}
	if _, err := Adopt(slices.Repeat([]int{-1}, FDs), false); err == nil {
		t.Error("took over nothing")
	}
}

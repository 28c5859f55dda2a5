// SPDX-License-Identifier: Apache-2.0

package offload

import (
	"encoding/binary"
	"flag"
	"math/rand"
	"os"
	"runtime"
	"slices"
	"testing"

	"github.com/cilium/ebpf"
	"weft/flowtable"
	"weft/internal/cpu"
	"weft/packet"
	"weft/port/porttest"
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

// flow is a megaflow of the twin.
type flow struct {
	slot      uint32
	key, mask flowtable.Key
	actions   []flowtable.Action
	out       Output
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

// twin has the programs and the worker's view of the same flows.
type twin struct {
	*testing.T
	rng   *rand.Rand
	table *Table
	flows []flow
	rx    *porttest.Rx
	batch *packet.Batch
	hits  int
	sum   map[uint32]*[2]uint64 // frames and bytes of each slot
}

// Random frames get the same verdict from the programs as from the worker's extraction and a
// search of all flows. Frames that the programs leave to the worker are those that package
// documentation names. The counts are those of the frames.
func TestProgramsAgainstWorker(t *testing.T) {
	w := &twin{T: t, rng: rand.New(rand.NewSource(int64(*frames))), table: newTable(t), batch: new(packet.Batch), sum: map[uint32]*[2]uint64{}}
	w.rx = porttest.NewRx(porttest.Options{Slots: 1, SlotBytes: 4096})
	defer w.rx.Close()
	runtime.LockOSThread() // never unlocked: the pinned thread ends with the test
	allowed, err := cpu.Allowed()
	if err != nil {
		t.Fatal(err)
	}
	if err := cpu.Pin(allowed[0]); err != nil { // the verdict is in memory of the processor
		t.Fatal(err)
	}
	for n := range *frames {
		if n%1000 == 0 {
			w.change()
		}
		w.frame(w.draw())
	}
	if w.hits < *frames/20 {
		t.Errorf("%d of %d frames hit: the test is void", w.hits, *frames)
	}
	w.checkCounts()
}

// change removes some flows and adds others.
func (w *twin) change() {
	w.flows = nil
	w.checkCounts()
	for slot := range uint32(40) {
		w.table.Remove(slot)
	}
	for slot := range uint32(40) {
		if w.rng.Intn(3) == 0 {
			continue
		}
		f := flow{slot: slot, out: Output{Port: slot + 1, Ifindex: 1 + w.rng.Intn(3), MTU: []int{100, 1500, 9000}[w.rng.Intn(3)]}}
		f.mask[flowtable.WPort] = ^uint64(0)
		for i := flowtable.WPort + 1; i < keyWords; i++ {
			f.mask[i] = []uint64{0, ^uint64(0), 0xffff << 48, 0xffff}[w.rng.Intn(4)]
		}
		if w.rng.Intn(8) == 0 {
			f.mask[flowtable.WIPv6Src] = 1
		}
		frame := w.draw()
		if _, ok := w.extract(frame, &f.key); !ok {
			continue
		}
		for i := range f.key {
			f.key[i] &= f.mask[i]
		}
		if old := w.search(&f.key); old != nil && old.mask == f.mask {
			continue // two megaflows of one mask have different keys
		}
		f.actions = w.drawActions(f.out.Port)
		rewrite, out, known := Plan(f.actions)
		if !known || out != f.out.Port {
			w.Fatalf("the programs do not know the actions %v", f.actions)
		}
		f.installed = w.table.Install(slot, &f.key, &f.mask, rewrite, f.out)
		if f.installed && f.mask[flowtable.WIPv6Src] != 0 {
			w.Fatal("a flow that matches IPv6 addresses is in the kernel")
		}
		w.flows = append(w.flows, f)
	}
	w.table.Pause(w.rng.Intn(10) == 0)
}

func (w *twin) search(k *flowtable.Key) *flow {
	for i := range w.flows {
		if w.flows[i].matches(k) {
			return &w.flows[i]
		}
	}
	return nil
}

// draw returns a random frame, mostly TCP and UDP over IPv4 of few addresses.
func (w *twin) draw() []byte {
	r := w.rng
	proto := []byte{packet.ProtoTCP, packet.ProtoUDP, packet.ProtoUDP, packet.ProtoTCP, packet.ProtoICMP, byte(r.Intn(256))}[r.Intn(6)]
	payload := []int{0, 1, 20, 60, 1460, r.Intn(2000)}[r.Intn(6)]
	header := 8
	if proto == packet.ProtoTCP {
		header = 20 + 4*r.Intn(3)
	}
	f := make([]byte, 34+header+payload)
	f[5], f[11], f[12], f[13] = byte(r.Intn(2)), byte(r.Intn(2)), 0x08, 0x00
	ip := f[14:]
	ip[0], ip[1], ip[8], ip[9] = 0x45, byte(r.Intn(2)), byte(63+r.Intn(2)), proto
	binary.BigEndian.PutUint16(ip[2:], uint16(len(f)-14))
	binary.BigEndian.PutUint16(ip[10:], uint16(r.Intn(1<<16)))
	ip[12], ip[15], ip[16], ip[19] = 10, byte(r.Intn(2)), 10, byte(r.Intn(2))
	l4 := f[34:]
	l4[1], l4[3] = byte(r.Intn(2)), byte(r.Intn(2))
	switch proto {
	case packet.ProtoTCP:
		l4[12], l4[13] = byte(header/4)<<4, byte(r.Intn(2))<<4
	case packet.ProtoUDP:
		binary.BigEndian.PutUint16(l4[4:], uint16(len(l4)))
	}
	switch r.Intn(12) {
	case 0: // any change
		f[r.Intn(min(len(f), 64))] = byte(r.Intn(256))
	case 1: // padding, or a truncated frame
		f = append(f, make([]byte, r.Intn(20))...)
	case 2:
		f = f[:15+r.Intn(len(f)-15)]
	case 3: // a fragment
		ip[6+r.Intn(2)] |= 1 << r.Intn(8)
	case 5: // a TTL that ends here or at the next hop
		ip[8] = byte(r.Intn(4))
	case 4: // a tag
		f = append(f[:12:12], append([]byte{0x81, 0, 0, 5}, f[12:]...)...)
	}
	return f
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
	reason := flowtable.Extract(b, &b.Frames[0], k)
	length = b.Frames[0].Len()
	w.rx.Release()
	return length, reason == packet.DropNone
}

// plain reports whether package documentation says that the programs know the frame.
func plain(frame []byte, k *flowtable.Key, length int) bool {
	proto := k[flowtable.WIP] >> flowtable.ProtoShift
	return k[flowtable.WEthDst]&0xffff == packet.EtherTypeIPv4 && k[flowtable.WEthSrc]&0xffff == 0 && frame[14] == 0x45 &&
		k[flowtable.WIP]>>flowtable.FragShift&3 == 0 && (proto == packet.ProtoTCP || proto == packet.ProtoUDP) &&
		length == len(frame) && length >= plainLen
}

// frame compares the verdicts about one frame.
func (w *twin) frame(frame []byte) {
	var k flowtable.Key
	length, ok := w.extract(frame, &k)
	// A test run takes an Ethernet header off before it calls a socket filter. The kernel does
	// not for a packet socket.
	taken, err := w.table.filter.Run(&ebpf.RunOptions{Data: append(make([]byte, 14), frame...)})
	if err != nil {
		w.Fatal(err)
	}
	if len(frame) < 34 { // Linux 6.18 refuses to run an ingress program for such a frame
		if taken != takeWhole {
			w.Fatalf("the kernel gets a short frame: %x", frame)
		}
		return
	}
	out := make([]byte, len(frame)+64)
	verdict := &ebpf.RunOptions{Data: frame, DataOut: out}
	result, err := w.table.ingress.Run(verdict)
	if err != nil {
		w.Fatal(err)
	}
	hit := w.expected(&k)
	if !ok || w.table.paused || !plain(frame, &k, length) {
		hit = nil
	}
	const redirected = 7 // TC_ACT_REDIRECT
	switch {
	case taken == takeWhole && result == tcxDrop:
		if hit != nil && length <= hit.out.MTU+ethernetLen && w.perform(frame, hit.actions) != nil {
			w.Fatalf("the worker gets a frame of slot %d: %x", hit.slot, frame)
		}
	case taken == takeNone && result == redirected:
		w.hits++
		slot := w.counted(uint64(length))
		f := w.bySlot(slot)
		if !ok || f == nil || !f.matches(&k) || !plain(frame, &k, length) || length > f.out.MTU+ethernetLen {
			w.Fatalf("slot %d gets a frame of others: %x", slot, frame)
		}
		if want := w.perform(frame, f.actions); string(verdict.DataOut) != string(want) {
			w.Fatalf("the frame %x becomes %x, want %x, by %v", frame, verdict.DataOut, want, f.actions)
		}
	default:
		w.Fatalf("filter %d, ingress program %d: %x", taken, result, frame)
	}
}

// drawActions returns random actions that the programs know.
func (w *twin) drawActions(out uint32) (list []flowtable.Action) {
	for range w.rng.Intn(4) {
		a := flowtable.Action{Op: []flowtable.Op{flowtable.OpSetEthDst, flowtable.OpSetEthSrc, flowtable.OpDecTTL}[w.rng.Intn(3)]}
		if a.Op != flowtable.OpDecTTL {
			a.U64 = w.rng.Uint64() >> 16
		} else if slices.Contains(list, a) {
			continue
		}
		list = append(list, a)
	}
	return append(list, flowtable.Action{Op: flowtable.OpOutput, U32: out})
}

// perform returns the frame after the worker's actions, or nil if it drops the frame.
func (w *twin) perform(frame []byte, actions []flowtable.Action) []byte {
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
	if flowtable.Extract(b, f, &k) != packet.DropNone {
		return nil
	}
	for i := range actions {
		switch a := &actions[i]; a.Op {
		case flowtable.OpSetEthDst:
			f.SetEthDst(a.U64)
		case flowtable.OpSetEthSrc:
			f.SetEthSrc(a.U64)
		case flowtable.OpDecTTL:
			if f.DecTTL() != packet.DropNone {
				return nil
			}
		}
	}
	out := make([]byte, f.Len())
	b.Gather(f, out)
	return out
}

// The programs do not know other actions, nor an output before the end.
func TestPlanRefuses(t *testing.T) {
	out := flowtable.Action{Op: flowtable.OpOutput, U32: 1}
	ttl := flowtable.Action{Op: flowtable.OpDecTTL}
	for _, list := range [][]flowtable.Action{
		nil, {ttl}, {out, out}, {ttl, ttl, out}, {{Op: flowtable.OpSetTTL, U32: 5}, out}, {{Op: flowtable.OpDrop}}, {out, ttl},
	} {
		if _, _, known := Plan(list); known {
			t.Errorf("%v is known", list)
		}
	}
}

// expected returns the flow of the kernel that key k matches, or nil if it matches none or several.
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

// counted finds the slot that has counted one more frame of this length.
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

// checkCounts takes all counts and compares them with those of the frames.
func (w *twin) checkCounts() {
	c := Counts{w.table.memory}
	got := 0
	for slot, found := c.NextOffloaded(0); found; slot, found = c.NextOffloaded(slot + 1) {
		if _, has := w.table.flowKeys[slot]; !has {
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

// Another process takes over a table with its counts, without its flows.
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
	next, err := Adopt(porttest.Duplicates(t, table.FDs()))
	if err != nil {
		t.Fatal(err)
	}
	defer next.Close()
	counts, err := OpenCounts(next.FDs())
	if err != nil {
		t.Fatal(err)
	}
	defer counts.Close()
	if c := counts.TakeCounts(2); c.Packets != 5 || c.Out != 2 {
		t.Errorf("counts %+v", c)
	}
	var first key
	if err := next.flows.NextKey(nil, &first); err == nil {
		t.Error("a flow is left")
	}
	if !next.Install(9, &k, &mask, Rewrite{}, Output{Port: 3, Ifindex: 1, MTU: 1500}) {
		t.Error("no room for a flow")
	}
	if _, err := Adopt([]int{-1, -1, -1, -1}); err == nil {
		t.Error("took over nothing")
	}
}

// SPDX-License-Identifier: Apache-2.0

package xsk

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"weft/packet"
)

// This test runs one queue against a model of the kernel. It kills the engine at each store that
// another process can see. After each step, each UMEM frame must have the owner that the model
// expects.

const (
	modelRing  = 64
	modelFrame = 2048
)

// model is the kernel's side of one queue.
type model struct {
	t    *testing.T
	umem []byte
	mem  queueMemory

	fill, completion ring[uint64]
	rxRing, txRing   ring[unix.XDPDesc]

	// held has the UMEM addresses that the model took from the fill ring and has not filled with a
	// frame yet.
	held     []uint64
	inFlight []uint64 // UMEM addresses that the model took from the tx ring and has not completed

	rx *rxQueue
	tx *txQueue

	received  uint64   // last frame received by the kernel
	delivered uint64   // last frame received by the engine
	killed    bool     // the engine was killed after its last frame
	written   []uint64 // frames sent but not flushed
	flushed   []uint64 // frames that the engine has flushed and the model has not taken
	sequence  uint64
	pending   int // number of frames lent and not released
}

func modelRingMem[T unix.XDPDesc | uint64](slot int) ring[T] {
	off := unix.XDPRingOffset{Producer: 0, Consumer: 64, Flags: 128, Desc: 192}
	return makeRing[T](make([]byte, 192+modelRing*slot), off, modelRing)
}

func newModel(t *testing.T, start uint32) *model {
	m := &model{
		t:    t,
		fill: modelRingMem[uint64](8), completion: modelRingMem[uint64](8),
		rxRing: modelRingMem[unix.XDPDesc](16), txRing: modelRingMem[unix.XDPDesc](16),
	}
	s := spec{Queues: 2, FrameSize: modelFrame, RingSize: modelRing}
	_, size := s.carve(nil)
	region := make([]byte, size)
	queues, _ := s.carve(region)
	// Use the second queue, because its UMEM addresses do not start at 0.
	m.umem, m.mem = region[:s.umemBytes()], queues[1]
	// The ring indexes start shortly before 2^32, so they wrap around soon.
	for _, index := range []interface{ Store(uint32) }{
		m.fill.producer, m.fill.consumer, m.completion.producer, m.completion.consumer,
		m.rxRing.producer, m.rxRing.consumer, m.txRing.producer, m.txRing.consumer, &m.mem.record.sent, &m.mem.record.lent,
	} {
		index.Store(start)
	}
	fillAll(&m.fill, m.mem.rx, modelFrame)
	m.open()
	return m
}

// open is Open for one queue, over the rings of the model.
func (m *model) open() {
	m.t.Helper()
	m.rx = &rxQueue{
		fd: -1, wait: -1, rx: m.rxRing, fill: m.fill, record: m.mem.record, umem: m.umem, umemAt: address(m.umem),
		first: m.mem.rx, bytes: m.mem.tx - m.mem.rx, frameSize: modelFrame,
	}
	m.tx = &txQueue{
		fd: -1, tx: m.txRing, completion: m.completion, record: m.mem.record, marks: m.mem.marks, umem: m.umem,
		first: m.mem.tx, bytes: m.mem.tx - m.mem.rx, frameSize: modelFrame, shift: 11, mtu: 1514, free: make([]uint32, modelRing),
	}
	if err := m.rx.recoverIndexes(); err != nil {
		m.t.Fatal("rx:", err)
	}
	if err := m.tx.recoverFrames(); err != nil {
		m.t.Fatal("tx:", err)
	}
	m.pending, m.written = 0, nil
}

func (m *model) kill() {
	m.killed = true
	m.open()
}

func between[T unix.XDPDesc | uint64](r *ring[T]) (entries []T) {
	for i := r.consumer.Load(); i != r.producer.Load(); i++ {
		entries = append(entries, *r.slot(i))
	}
	return entries
}

func frameOf(addr uint64) uint64 { return addr &^ (modelFrame - 1) }

// check fails unless each UMEM frame has exactly one owner and the mark that belongs to it.
func (m *model) check(op string) {
	m.t.Helper()
	rx := append(between(&m.fill), m.held...)
	for _, d := range between(&m.rxRing) {
		rx = append(rx, frameOf(d.Addr))
	}
	m.whole(op+": receiving", rx, m.mem.rx)

	tx := slices.Clone(m.inFlight)
	for _, d := range between(&m.txRing) {
		tx = append(tx, frameOf(d.Addr))
	}
	for _, addr := range between(&m.completion) {
		tx = append(tx, frameOf(addr))
	}
	for i := m.tx.published; i != m.tx.next; i++ {
		tx = append(tx, frameOf(m.txRing.slot(i).Addr))
	}
	for _, addr := range tx {
		if m.mem.marks[(addr-m.mem.tx)/modelFrame] != markGiven {
			m.t.Fatalf("%s: the kernel has frame %#x, but it is marked free", op, addr)
		}
	}
	for _, frame := range m.tx.free[:m.tx.freeCount] {
		if m.mem.marks[frame] != markFree {
			m.t.Fatalf("%s: frame %d is free, but marked given", op, frame)
		}
		tx = append(tx, m.mem.tx+uint64(frame)*modelFrame)
	}
	m.whole(op+": sending", tx, m.mem.tx)
}

// whole fails unless frames has each UMEM frame of one half exactly once. The half begins at
// firstAddr.
func (m *model) whole(name string, frames []uint64, firstAddr uint64) {
	m.t.Helper()
	slices.Sort(frames)
	for i := range max(len(frames), modelRing) {
		if i >= len(frames) || i >= modelRing || frames[i] != firstAddr+uint64(i)*modelFrame {
			m.t.Fatalf("%s: not every frame has exactly one owner: %d owners of %#x", name, len(frames), frames)
		}
	}
}

func (m *model) kernelTake(n int) {
	for _, addr := range between(&m.fill)[:min(n, int(m.fill.producer.Load()-m.fill.consumer.Load()))] {
		m.held = append(m.held, addr)
		m.fill.consumer.Add(1)
	}
}

func (m *model) kernelReceive(n int) {
	for ; n > 0 && len(m.held) > 0; n-- {
		m.received++
		addr := m.held[0] + kernelHeadroom
		m.held = m.held[1:]
		length := 60 + uint32(m.received*97%1400)
		payload(m.umem[addr:addr+uint64(length)], m.received)
		*m.rxRing.slot(m.rxRing.producer.Load()) = unix.XDPDesc{Addr: addr, Len: length}
		m.rxRing.producer.Add(1)
	}
}

func (m *model) kernelSend(n int) {
	for _, d := range between(&m.txRing)[:min(n, int(m.txRing.producer.Load()-m.txRing.consumer.Load()))] {
		want := make([]byte, d.Len)
		if len(m.flushed) == 0 {
			m.t.Fatal("the kernel sends what was not flushed")
		}
		payload(want, m.flushed[0])
		m.flushed = m.flushed[1:]
		if !bytes.Equal(want, m.umem[d.Addr:d.Addr+uint64(d.Len)]) {
			m.t.Fatalf("frame at %#x was overwritten before it was sent", d.Addr)
		}
		m.inFlight = append(m.inFlight, d.Addr)
		m.txRing.consumer.Add(1)
	}
}

func (m *model) kernelComplete(n int, pick uint64) {
	for ; n > 0 && len(m.inFlight) > 0; n-- {
		i := int(pick % uint64(len(m.inFlight)))
		*m.completion.slot(m.completion.producer.Load()) = m.inFlight[i] + pick%64
		m.completion.producer.Add(1)
		m.inFlight = slices.Delete(m.inFlight, i, i+1)
	}
}

func payload(b []byte, number uint64) {
	for i := range b {
		b[i] = byte(number) + byte(i)
	}
	binary.LittleEndian.PutUint64(b, number)
}

// recv receives a batch of at most room frames and compares it with the frames that the model sent.
func (m *model) recv(room int) {
	b := new(packet.Batch)
	for b.N < packet.BatchSize-room {
		f, _ := b.Next()
		b.Commit(f, 0)
	}
	skip := b.N
	waiting := int(m.rxRing.producer.Load() - m.rx.next)
	if n := m.rx.Recv(b); n != min(room, waiting) || b.N != skip+n {
		m.t.Fatalf("Recv of %d with room for %d gave %d, %d in the batch (%s)", waiting, room, n, b.N-skip, m.rx.fault)
	}
	for i := skip; i < b.N; i++ {
		f := &b.Frames[i]
		got := make([]byte, f.Len())
		b.Gather(f, got)
		number := binary.LittleEndian.Uint64(got)
		want := make([]byte, 60+number*97%1400)
		payload(want, number)
		if !bytes.Equal(got, want) {
			m.t.Fatalf("frame %d is not as received", number)
		}
		if number <= m.delivered || number != m.delivered+1 && !m.killed {
			m.t.Fatalf("frame %d after frame %d", number, m.delivered)
		}
		m.delivered, m.killed = number, false
		m.pending++
	}
}

// release calls Release, and kills the engine after cut of its stores.
func (m *model) release(cut int) {
	if m.rx.next == m.rx.released || cut >= 2 {
		m.rx.Release()
		m.pending = 0
		return
	}
	if cut == 1 {
		m.rx.publishFill()
	}
	m.kill()
}

// send calls Send, and kills the engine after cut of its stores. With 255, it does not kill the
// engine. The stores are, in this order: marks of completions, tx slots, the index sent, and marks of
// sent frames.
func (m *model) send(n, cut int) {
	done := m.completion.producer.Load()
	if cut < 8 {
		part := min(m.tx.reaped+uint32(cut), done)
		if int32(done-part) > 0 {
			m.tx.markDone(part)
			m.kill()
			return
		}
		m.tx.markDone(done) // the engine was killed between the marks and the store of the consumer index
		m.kill()
		return
	}
	m.tx.reap()
	if m.tx.reaped != done {
		m.t.Fatal("not all completions were reaped")
	}
	b := new(packet.Batch)
	var order []uint8
	for i := range n {
		f, header := b.Next()
		payload(header[:128], m.sequence+uint64(i)+1)
		b.Commit(f, 128)
		order = append(order, uint8(i))
	}
	marks, sent, free := slices.Clone(m.mem.marks), m.mem.record.sent.Load(), m.tx.freeCount
	took := m.tx.Send(b, order)
	if took != min(n, free) {
		m.t.Fatalf("took %d of %d frames with %d free", took, n, free)
	}
	if cut < 255 && took > 0 {
		given := m.tx.free[m.tx.freeCount:][:took]
		for _, frame := range given[min(len(given), max(cut-9, 0)):] {
			m.mem.marks[frame] = marks[frame]
		}
		if cut == 8 {
			m.mem.record.sent.Store(sent)
		}
		m.kill()
		return
	}
	for range took {
		m.sequence++
		m.written = append(m.written, m.sequence)
	}
}

func (m *model) flush() {
	m.tx.Flush()
	m.flushed = append(m.flushed, m.written...)
	m.written = nil
}

// run interprets each pair of bytes of data as a step. In the end it empties the queue.
func (m *model) run(data []byte) {
	m.check("open")
	for ; len(data) >= 2; data = data[2:] {
		op, arg := data[0]%16, int(data[1])
		switch op {
		case 0, 1:
			m.kernelTake(arg % 70)
		case 2, 3:
			m.kernelReceive(arg % 70)
		case 4, 5:
			m.recv(arg % (packet.BatchSize + 1))
		case 6:
			m.release(2)
		case 7:
			m.release(arg % 3)
		case 8, 9:
			m.send(arg%(packet.BatchSize+1), 255)
		case 10:
			m.send(arg%8+1, arg%48)
		case 11:
			m.flush()
		case 12:
			m.kernelSend(arg % 70)
		case 13, 14:
			m.kernelComplete(arg%40, uint64(arg))
		case 15:
			if arg%8 == 0 {
				m.kill()
			}
		}
		m.check(fmt.Sprintf("step %d %d", op, arg))
	}
	m.flush()
	m.release(2)
	for range 4 {
		m.kernelTake(modelRing)
		m.kernelReceive(modelRing)
		for range 3 {
			m.recv(packet.BatchSize)
		}
		m.release(2)
		m.kernelSend(modelRing)
		m.kernelComplete(modelRing, 1)
		m.tx.reap()
		m.check("rest")
	}
	if m.tx.freeCount != modelRing || len(m.flushed) != 0 || m.delivered != m.received {
		m.t.Fatalf("at rest %d frames are free, %d were not sent, frame %d of %d was the last seen",
			m.tx.freeCount, len(m.flushed), m.delivered, m.received)
	}
}

func TestNoFrameIsLostOrUsedTwice(t *testing.T) {
	step := uint64(1)
	if testing.Short() {
		step = 10
	}
	for seed := uint64(0); seed < 300; seed += step {
		r := rand.New(rand.NewPCG(seed, 1))
		data := make([]byte, 600)
		for i := range data {
			data[i] = byte(r.Uint32())
		}
		newModel(t, uint32(seed)*uint32(0xffffffff/299)).run(data)
	}
}

func FuzzOwnership(f *testing.F) {
	f.Add(uint32(0), []byte{0, 64, 2, 32, 4, 32, 7, 1, 8, 8, 10, 9, 11, 0})
	f.Add(^uint32(0)-3, []byte{0, 64, 2, 64, 5, 32, 15, 0, 5, 32, 6, 0, 9, 32, 11, 0, 12, 64, 13, 20, 10, 3})
	f.Fuzz(func(t *testing.T, start uint32, data []byte) { newModel(t, start).run(data[:min(len(data), 2000)]) })
}

func TestHostileRingsAreAFault(t *testing.T) {
	for name, spoil := range map[string]func(*model){
		"an address of another queue": func(m *model) { m.rxRing.slot(0).Addr = 0 },
		"an address of a sending one": func(m *model) { m.rxRing.slot(0).Addr = m.mem.tx },
		"an address past the end":     func(m *model) { m.rxRing.slot(0).Addr = 1 << 40 },
		"a length past the frame":     func(m *model) { m.rxRing.slot(0).Len = modelFrame },
		"a producer past the ring":    func(m *model) { m.rxRing.producer.Add(modelRing) },
	} {
		m := newModel(t, 0)
		m.kernelTake(8)
		m.kernelReceive(8)
		spoil(m)
		if b := new(packet.Batch); m.rx.Recv(b) != -1 || m.rx.Fault() == "" || m.rx.Recv(b) != -1 {
			t.Errorf("%s was taken", name)
		}
	}
	// An invalid completion frees no frame.
	m := newModel(t, 0)
	m.send(4, 255)
	m.flush()
	for _, addr := range []uint64{0, m.mem.rx, m.mem.tx + 5*modelFrame, m.mem.tx + 6*modelFrame, 1 << 50, m.mem.tx + 5*modelFrame} {
		*m.completion.slot(m.completion.producer.Load()) = addr
		m.completion.producer.Add(1)
	}
	m.tx.reap()
	if m.tx.freeCount != modelRing-4 {
		t.Errorf("%d frames are free", m.tx.freeCount)
	}
	m.completion.producer.Store(1 << 31)
	m.tx.reap()
	if m.tx.freeCount != modelRing-4 {
		t.Errorf("%d frames are free", m.tx.freeCount)
	}
}

func TestARecordThatContradictsTheRingsIsRefused(t *testing.T) {
	m := newModel(t, 0)
	m.fill.producer.Add(modelRing + 1)
	if err := m.rx.recoverIndexes(); err == nil {
		t.Error("too many frames on the fill ring")
	}
	m = newModel(t, 0)
	m.mem.record.lent.Store(3)
	if err := m.rx.recoverIndexes(); err == nil {
		t.Error("more lent than received")
	}
	m = newModel(t, 0)
	m.mem.marks[7] = markGiven
	if err := m.tx.recoverFrames(); err == nil {
		t.Error("a frame is given to nobody")
	}
	m = newModel(t, 0)
	m.mem.record.sent.Store(modelRing + 1)
	if err := m.tx.recoverFrames(); err == nil {
		t.Error("more frames written than there are")
	}
}

func TestSendRefusesByName(t *testing.T) {
	m := newModel(t, 0)
	b := new(packet.Batch)
	body := make([]byte, 4096)
	for _, n := range []uint32{1514 - 128, 1515 - 128} {
		f, _ := b.Next()
		b.AddSpan(f, address(body), n)
		b.Commit(f, 128)
	}
	f, _ := b.Next()
	b.Commit(f, 0)
	if n := m.tx.Send(b, []uint8{0, 1, 2}); n != 3 {
		t.Fatalf("Send took %d frames", n)
	}
	for i, want := range []packet.DropReason{packet.DropNone, packet.DropOversizeFrame, packet.DropRuntFrame} {
		if b.Frames[i].Drop != want {
			t.Errorf("frame %d: %v, want %v", i, b.Frames[i].Drop, want)
		}
	}
	if m.tx.freeCount != modelRing-1 {
		t.Errorf("%d frames free", m.tx.freeCount)
	}
}

// SPDX-License-Identifier: Apache-2.0

package pipeline

import (
	"encoding/binary"
	"math/rand/v2"
	"slices"
	"testing"

	"weft/datapath"
	"weft/flowtable"
	"weft/internal/shm"
)

// missRing returns an upcall ring, and a function that writes a miss to the ring.
func missRing(t *testing.T) (shm.RingMem, func(port, held uint32, vni ...uint64)) {
	t.Helper()
	var measure shm.Layout
	shm.CarveRing(&measure, 1<<18)
	region, err := shm.Create("upcalls", measure.Off)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { region.Close() })
	m := shm.CarveRing(&shm.Layout{Mem: region.Bytes()}, 1<<18)
	p := shm.NewProducer(m, -1)
	return m, func(port, held uint32, vni ...uint64) {
		msg := binary.LittleEndian.AppendUint32(nil, uint32(datapath.UpMiss))
		msg = binary.LittleEndian.AppendUint32(msg, held)
		var key flowtable.Key
		key.SetInPort(uint32(port))
		copy(key.Tunnel()[:], vni)
		for _, word := range key {
			msg = binary.LittleEndian.AppendUint64(msg, word)
		}
		if !p.Push(msg) {
			t.Fatal("the ring is full")
		}
	}
}

func heldSlots(misses []datapath.Upcall) (slots []uint32) {
	for _, up := range misses {
		slots = append(slots, up.Arg)
	}
	return slots
}

// equalCosts returns costs for n misses.
func equalCosts(n int) []uint64 { return slices.Repeat([]uint64{1}, n) }

// Misses of equal cost are answered round robin over the ports, and in order for each port. The next
// control process gets the unanswered misses.
func TestMissQueue(t *testing.T) {
	m, miss := missRing(t)
	for held := range uint32(6) {
		miss(1, held)
	}
	miss(2, 20)
	miss(2, 21)
	miss(3, 30)
	none := func([]byte) { t.Error("a message that is not a miss") }
	q := newMissQueue(shm.NewConsumer(m))
	q.take(none)
	if got, want := heldSlots(q.pop(nil, 4)), []uint32{0, 20, 30, 1}; !slices.Equal(got, want) {
		t.Errorf("first %v, want %v", got, want)
	}
	q.answered(equalCosts(4))
	if got, want := heldSlots(q.pop(nil, 2)), []uint32{21, 2}; !slices.Equal(got, want) {
		t.Errorf("then %v, want %v", got, want)
	}
	// control dies before it has answered the last misses
	answered := 0
	q = newMissQueue(shm.NewConsumer(m))
	q.take(func(msg []byte) {
		if up, err := datapath.ParseUpcall(msg); err != nil || up.Op != datapath.UpAnswered {
			t.Errorf("%v, %v", up, err)
		}
		answered++
	})
	if got, want := heldSlots(q.pop(nil, 9)), []uint32{2, 21, 3, 4, 5}; !slices.Equal(got, want) || answered != 2 {
		t.Errorf("the next process finds %v and %d answered, want %v and 2", got, answered, want)
	}
	if q.answered(equalCosts(5)); q.waiting() || shm.NewConsumer(m).Next() != nil {
		t.Error("misses are left in the queue")
	}
}

// Misses of VNIs behind one uplink are answered round robin, like misses of ports.
func TestVNIsTakeTurns(t *testing.T) {
	m, miss := missRing(t)
	for held := range uint32(4) {
		miss(1, held, 5)
	}
	miss(1, 70, 7)
	miss(1, 10)
	q := newMissQueue(shm.NewConsumer(m))
	q.take(func([]byte) { t.Error("a message that is not a miss") })
	if got, want := heldSlots(q.pop(nil, 4)), []uint32{0, 70, 10, 1}; !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}

// A port whose misses take long waits until the misses of others have taken as much time. A port that
// had no misses for a while has no advantage from this.
func TestTurnsAreByTime(t *testing.T) {
	m, miss := missRing(t)
	q := newMissQueue(shm.NewConsumer(m))
	none := func([]byte) { t.Error("a message that is not a miss") }
	expect := func(n int, want []uint32, costs ...uint64) {
		t.Helper()
		if got := heldSlots(q.pop(nil, n)); !slices.Equal(got, want) {
			t.Errorf("%v, want %v", got, want)
		}
		q.answered(costs)
	}
	for held := range uint32(6) {
		miss(1, held)
		miss(2, 20+held)
	}
	q.take(none)
	expect(2, []uint32{0, 20}, 1000, 100)
	expect(3, []uint32{21, 22, 23}, 100, 100, 100)
	expect(4, []uint32{24, 25, 1, 2}, 100, 100, 1000) // the miss 2 goes back to the queue
	miss(3, 30)
	miss(2, 26)
	miss(3, 31)
	q.take(none)
	expect(4, []uint32{30, 26, 31, 2}, 1, 100, 1, 1000)
	expect(9, []uint32{3, 4, 5}) // all go back, in their order
	expect(9, []uint32{3, 4, 5}, 1, 1, 1)
	if q.waiting() || shm.NewConsumer(m).Next() != nil {
		t.Error("misses are left in the queue")
	}
}

// modelSender is a sender of the model in TestMissQueueAgainstSlices.
type modelSender struct {
	misses                []uint32
	account, usual, entry uint64
}

// For random arrivals and costs, the queue gives the same results as a model that searches
// all senders for each miss.
func TestMissQueueAgainstSlices(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	m, miss := missRing(t)
	q := newMissQueue(shm.NewConsumer(m))
	var ports [4]modelSender
	var entries, turn uint64
	enter := func(p *modelSender) { p.entry = entries; entries++ }
	for held := uint32(0); held < 20_000; {
		for range r.IntN(40) {
			if q.received.len() > 300 {
				break // keeps the ring from becoming full
			}
			port := r.IntN(1 + r.IntN(len(ports)))
			miss(uint32(port), held)
			p := &ports[port]
			if p.misses = append(p.misses, held); len(p.misses) == 1 {
				p.account = max(p.account, turn)
				enter(p)
			}
			held++
		}
		q.take(func([]byte) { t.Error("a message that is not a miss") })
		n := 1 + r.IntN(32)
		var want []uint32
		var from []*modelSender
		var charged, starts []uint64
		for len(want) < n {
			var next *modelSender
			for i := range ports {
				p := &ports[i]
				if len(p.misses) > 0 && (next == nil || p.account < next.account || p.account == next.account && p.entry < next.entry) {
					next = p
				}
			}
			if next == nil {
				break
			}
			want, from, charged = append(want, next.misses[0]), append(from, next), append(charged, max(next.usual, 1))
			next.misses, turn = next.misses[1:], next.account
			starts = append(starts, turn)
			next.account += max(next.usual, 1)
			if len(next.misses) > 0 {
				enter(next)
			}
		}
		if got := heldSlots(q.pop(nil, n)); !slices.Equal(got, want) {
			t.Fatalf("%v, want %v", got, want)
		}
		done := len(want)
		if done > 0 {
			done -= r.IntN(done)
		}
		for i := len(want) - 1; i >= done; i-- {
			p := from[i]
			p.account -= charged[i]
			if p.misses = append([]uint32{want[i]}, p.misses...); len(p.misses) == 1 {
				enter(p)
			}
		}
		costs := make([]uint64, done)
		for i := range costs {
			costs[i], turn = uint64(r.IntN(10)), starts[i]
			from[i].account += costs[i] - charged[i]
			from[i].usual = (7*from[i].usual + costs[i]) / 8
		}
		q.answered(costs)
	}
}

// SPDX-License-Identifier: Apache-2.0

package upcalls

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
		key[flowtable.WPort] = uint64(port) << 32
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

// Misses are answered round robin over the ports, and in order for each port. The next
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
	q.answered()
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
	if q.answered(); q.waiting() || shm.NewConsumer(m).Next() != nil {
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

// For random arrivals, the queue gives the same results as a model made of slices.
func TestMissQueueAgainstSlices(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	m, miss := missRing(t)
	q := newMissQueue(shm.NewConsumer(m))
	var ports [4][]uint32
	var turns []int
	for held := uint32(0); held < 20_000; {
		for range r.IntN(40) {
			if q.received.len() > 300 {
				break // keeps the ring from becoming full
			}
			port := r.IntN(1 + r.IntN(len(ports)))
			miss(uint32(port), held)
			if ports[port] = append(ports[port], held); len(ports[port]) == 1 {
				turns = append(turns, port)
			}
			held++
		}
		q.take(func([]byte) { t.Error("a message that is not a miss") })
		n := 1 + r.IntN(32)
		var want []uint32
		for len(want) < n && len(turns) > 0 {
			port := turns[0]
			want, ports[port] = append(want, ports[port][0]), ports[port][1:]
			if turns = turns[1:]; len(ports[port]) > 0 {
				turns = append(turns, port)
			}
		}
		if got := heldSlots(q.pop(nil, n)); !slices.Equal(got, want) {
			t.Fatalf("%v, want %v", got, want)
		}
		q.answered()
	}
}

// SPDX-License-Identifier: Apache-2.0

package porttest

import (
	"bytes"
	"math/rand"
	"testing"

	"weft/packet"
	"weft/port"
)

var (
	_ port.Device = (*Device)(nil)
	_ port.Rx     = (*Rx)(nil)
	_ port.Tx     = (*Tx)(nil)
)

func frameOf(rng *rand.Rand, n int) []byte {
	b := make([]byte, n)
	rng.Read(b)
	return b
}

// Take returns the injected frames in order. A slot becomes free only after Release.
func TestThrough(t *testing.T) {
	rng := rand.New(rand.NewSource(1))
	o := Options{Slots: 8, SlotBytes: 3000, Header: 64, Span: 100}
	rx, tx := NewRx(o), NewTx(o)
	defer rx.Close()
	defer tx.Close()
	var sent [][]byte
	for range 9 {
		f := frameOf(rng, 14+rng.Intn(2900))
		if rx.Inject(f) {
			sent = append(sent, f)
		}
	}
	if len(sent) != 8 || rx.Lent() != 8 {
		t.Fatalf("Inject took %d frames, %d lent", len(sent), rx.Lent())
	}
	b := new(packet.Batch)
	if n := rx.Recv(b); n != 8 || b.N != 8 {
		t.Fatalf("Recv returned %d", n)
	}
	order := []uint8{0, 1, 2, 3, 4, 5, 6, 7}
	tx.Room.Store(5)
	if n := tx.Send(b, order); n != 5 {
		t.Fatalf("Send took %d frames", n)
	}
	tx.Room.Store(-1)
	if n := tx.Send(b, order[5:]); n != 3 {
		t.Fatalf("Send took %d frames", n)
	}
	if tx.Take() != nil {
		t.Fatal("a frame is visible before Flush")
	}
	tx.Flush()
	if rx.Inject(sent[0]) {
		t.Fatal("Inject took a frame before Release")
	}
	if rx.Release(); rx.Lent() != 0 {
		t.Fatal("frames are lent after Release")
	}
	got := tx.TakeAll()
	if len(got) != len(sent) {
		t.Fatalf("TakeAll returned %d frames", len(got))
	}
	for i := range sent {
		if !bytes.Equal(got[i], sent[i]) {
			t.Fatalf("frame %d differs", i)
		}
	}
}

func TestMTUAndBreak(t *testing.T) {
	d := New(1, Options{MTU: 100})
	defer d.Close()
	rx, tx := d.RxQueues[0], d.TxQueues[0]
	rx.Inject(make([]byte, 101))
	b := new(packet.Batch)
	rx.Recv(b)
	if n := tx.Send(b, []uint8{0}); n != 1 || b.Frames[0].Drop != packet.DropOversizeFrame {
		t.Fatalf("Send took %d frames with drop reason %v", n, b.Frames[0].Drop)
	}
	rx.Break()
	if rx.Recv(b) >= 0 || rx.Fault() == "" {
		t.Fatal("Recv succeeded after Break")
	}
}

func TestReplay(t *testing.T) {
	d := New(1, Options{})
	defer d.Close()
	rx, tx := d.RxQueues[0], d.TxQueues[0]
	tx.Discard.Store(true)
	for i := range 3 {
		rx.Inject(frameOf(rand.New(rand.NewSource(int64(i))), 60))
	}
	rx.Replay(1000)
	b := new(packet.Batch)
	order := make([]uint8, packet.BatchSize)
	for i := range order {
		order[i] = uint8(i)
	}
	total := 0
	pass := func() {
		b.Reset()
		n := rx.Recv(b)
		total += n
		tx.Send(b, order[:n])
		tx.Flush()
		rx.Release()
	}
	pass()
	if n := testing.AllocsPerRun(10, pass); n != 0 {
		t.Fatalf("a pass makes %v allocations, want 0", n)
	}
	for !rx.Replayed() {
		pass()
	}
	if total != 1000 || tx.Packets.Load() != 1000 {
		t.Fatalf("received %d, sent %d", total, tx.Packets.Load())
	}
}

// SPDX-License-Identifier: Apache-2.0

package afpacket

import (
	"bytes"
	"encoding/binary"
	"math/rand"
	"testing"

	"weft/packet"
	"weft/packet/packettest"
)

// The frames of several flows alternate in a batch. They form one train for each flow if their lengths
// allow it. The frames of each flow arrive unchanged and in order.
func TestTrainsOfFlows(t *testing.T) {
	r := newRig(t)
	a := packettest.NewArena(t, 1<<18)
	q := r.dev[0].Tx()[0].(*txQueue)
	for seed := range int64(40) {
		rng := rand.New(rand.NewSource(seed))
		equal := seed%2 == 0
		tmpl := r.template(seed%4 > 1)
		b := new(packet.Batch)
		a.Reset()
		flows := 1 + rng.Intn(8)
		want := map[uint16][][]byte{}
		for i := range packet.BatchSize {
			length := 100
			if !equal {
				length += 20 * rng.Intn(3)
			}
			data := make([]byte, length)
			rng.Read(data)
			f := a.Add(b, data, 128, 0)
			if reason := tmpl.Push(f, 5, uint32(i%flows)<<24, 0, nil); reason != packet.DropNone {
				t.Fatal(reason)
			}
			port := binary.BigEndian.Uint16(f.Header()[f.OuterL4:])
			want[port] = append(want[port], packettest.Bytes(b, f))
		}
		if n := q.Send(b, inOrder[:]); n != packet.BatchSize {
			t.Fatalf("seed %d: Send took %d frames", seed, n)
		}
		if equal && q.ordinary.count != len(want) {
			t.Errorf("seed %d: %d messages for %d flows", seed, q.ordinary.count, len(want))
		}
		for i, got := range r.receive(1, packet.BatchSize) {
			l4 := 14 + 20
			if got[12] != 8 {
				l4 = 14 + 40
			}
			port := binary.BigEndian.Uint16(got[l4:])
			if len(want[port]) == 0 || !bytes.Equal(comparable(got), comparable(want[port][0])) {
				t.Fatalf("seed %d: frame %d, port %d: not the next frame of its flow", seed, i, port)
			}
			want[port] = want[port][1:]
		}
		for port, rest := range want {
			if len(rest) > 0 {
				t.Errorf("seed %d: %d frames from port %d are missing", seed, len(rest), port)
			}
		}
	}
}

// If the vectors do not suffice for all messages of a batch, further calls send the rest. A frame that
// has too many pieces for a single call is dropped.
func TestMessagesOfManyPieces(t *testing.T) {
	r := newRig(t)
	a := packettest.NewArena(t, 1<<18)
	q := r.dev[0].Tx()[0].(*txQueue)
	q.Vectors = q.Vectors[:8]
	tmpl, b := r.template(false), new(packet.Batch)
	const dropped = 3 // index of the frame with too many pieces
	for i := range 6 {
		piece := 0
		if i == dropped {
			piece = 50
		}
		tmpl.Push(a.Add(b, make([]byte, 700), 128, piece), 5, uint32(i)<<24, 0, nil)
	}
	if n := q.Send(b, inOrder[:6]); n != 6 {
		t.Fatalf("Send took %d frames", n)
	}
	for i := range 6 {
		want := packet.DropNone
		if i == dropped {
			want = packet.DropTxFailed
		}
		if b.Frames[i].Drop != want {
			t.Errorf("frame %d: drop reason %v, want %v", i, b.Frames[i].Drop, want)
		}
	}
	if n := len(r.receive(1, 5)); n != 5 {
		t.Errorf("%d frames arrived, want 5", n)
	}
}

// A train ends before the frame whose pieces exceed the vectors.
func TestTrainOfManyPieces(t *testing.T) {
	r := newRig(t)
	a := packettest.NewArena(t, 1<<18)
	q := r.dev[0].Tx()[0].(*txQueue)
	q.Vectors = q.Vectors[:8]
	tmpl, b := r.template(false), new(packet.Batch)
	var want [][]byte
	for i := range 6 {
		f := a.Add(b, bytes.Repeat([]byte{byte(i)}, 700), 128, 300)
		if reason := tmpl.Push(f, 5, 0, 0, nil); reason != packet.DropNone {
			t.Fatal(reason)
		}
		want = append(want, packettest.Bytes(b, f))
	}
	if n := q.Send(b, inOrder[:6]); n != 6 {
		t.Fatalf("Send took %d frames", n)
	}
	for i := range 6 {
		if reason := b.Frames[i].Drop; reason != packet.DropNone {
			t.Fatalf("frame %d: drop reason %v, want none", i, reason)
		}
	}
	for i, got := range r.receive(1, 6) {
		if !bytes.Equal(comparable(got), comparable(want[i])) {
			t.Errorf("frame %d differs or is out of order", i)
		}
	}
	if q.ordinary.count != 3 {
		t.Errorf("%d trains, want 3 of two frames each", q.ordinary.count)
	}
}

// While the device is down, Send drops every frame and does not stop.
func TestMessagesToDownDevice(t *testing.T) {
	r := newRig(t)
	a := packettest.NewArena(t, 1<<18)
	r.ns[0].Exec("ip", "link", "set", "u0", "down")
	tmpl, b := r.template(false), new(packet.Batch)
	for i := range 3 {
		tmpl.Push(a.Add(b, make([]byte, 100), 100, 0), 5, uint32(i)<<24, 0, nil)
	}
	if n := r.dev[0].Tx()[0].Send(b, inOrder[:3]); n != 3 {
		t.Fatalf("Send took %d frames", n)
	}
	for i := range 3 {
		if b.Frames[i].Drop != packet.DropTxFailed {
			t.Errorf("frame %d: drop reason %v", i, b.Frames[i].Drop)
		}
	}
}

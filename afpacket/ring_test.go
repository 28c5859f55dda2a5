// SPDX-License-Identifier: Apache-2.0

package afpacket

import (
	"encoding/binary"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"weft/packet"
	"weft/packet/packettest"
	"weft/port"
)

// smallRing is a ring that wraps often.
var smallRing = Config{Dev: "u0", Slots: 64}

// sender sends numbered frames from host 0 to host 1.
type sender struct {
	r     *rig
	arena *packettest.Arena
	sent  uint32
	hash  uint32 // hash of the inner flow, which chooses the source port
}

func newSender(r *rig) *sender { return &sender{r: r, arena: packettest.NewArena(r.t, 1<<18)} }

// numberAt is the offset of a frame's number in a received datagram.
const numberAt = 14 + 20 + 8 + 8 + 14

// send sends one frame for each length, in bytes, with a call for each.
func (s *sender) send(lengths ...int) {
	s.r.t.Helper()
	tmpl := s.r.template(false)
	for _, n := range lengths {
		b := new(packet.Batch)
		s.arena.Reset()
		data := make([]byte, max(n, 60))
		binary.BigEndian.PutUint32(data[14:], s.sent)
		s.sent++
		f := s.arena.Add(b, data, 128, 0)
		if why := tmpl.Push(f, 5, s.hash, 0, nil); why != packet.DropNone {
			s.r.t.Fatal(why)
		}
		if got := s.r.dev[0].Tx()[0].Send(b, inOrder[:1]); got != 1 || f.Drop != packet.DropNone {
			s.r.t.Fatalf("a frame of %d bytes was not sent: %v", n, f.Drop)
		}
	}
}

// long is the length of a frame that does not fit into a slot. It needs the MTU that
// longMTU sets.
const long = 3000

func (r *rig) longMTU() {
	for i, n := range r.ns {
		n.Exec("ip", "link", "set", "u0", "mtu", "4000")
		r.up[i].SetMTU(4000)
		r.dev[i].Close()
		r.dev[i] = r.open(i)
	}
}

// next receives until at least one frame has arrived. It returns the numbers of the frames, and does
// not release them.
func next(t *testing.T, rx port.Rx) (numbers []uint32) {
	t.Helper()
	b := new(packet.Batch)
	for end := time.Now().Add(30 * time.Second); len(numbers) == 0 && time.Now().Before(end); {
		b.Reset()
		if rx.Recv(b) < 0 {
			t.Fatal(rx.Fault())
		}
		for i := range b.Frames[:b.N] {
			numbers = append(numbers, binary.BigEndian.Uint32(packettest.Bytes(b, &b.Frames[i])[numberAt:]))
		}
	}
	return numbers
}

// expect receives the frames with the numbers from to end-1. It fails if they do not arrive in order.
func expect(t *testing.T, rx port.Rx, from, end uint32) {
	t.Helper()
	for from < end {
		numbers := next(t, rx)
		if len(numbers) == 0 {
			t.Fatalf("frames %d to %d did not arrive", from, end-1)
		}
		for _, n := range numbers {
			if n != from {
				t.Fatalf("received frame %d, want %d", n, from)
			}
			from++
		}
		rx.Release()
	}
}

// Frames that fit into a slot and frames that do not keep their order.
func TestRingKeepsOrder(t *testing.T) {
	r := newRigOf(t, smallRing)
	r.longMTU()
	s := newSender(r)
	rx := r.dev[1].Rx()[0]
	for range 10 {
		s.send(60, long, 100, 1500, long, long, 60, 1990, 1850, 60, long, 60, 60, 60, 60, 1400)
		expect(t, rx, s.sent-16, s.sent)
	}
	if rx.Arm() || rx.Polled() {
		t.Error("an empty ring has frames, or a look at it costs a system call")
	}
}

// Each socket of an uplink with several queues has a ring of its own.
func TestRingOfEachQueue(t *testing.T) {
	r := newRigOf(t, Config{Dev: "u0", Slots: 64, Queues: 2})
	s := newSender(r)
	queues := r.dev[1].Rx()
	var got [2]int
	for end := time.Now().Add(30 * time.Second); (got[0] == 0 || got[1] == 0) && time.Now().Before(end); {
		s.hash += 0x9e3779b9 // another source port, for another queue
		s.send(60)
		for i, rx := range queues {
			b := new(packet.Batch)
			got[i] += rx.Recv(b)
			rx.Release()
		}
	}
	if yes, why := r.up[1].Ring(); got[0] == 0 || got[1] == 0 || len(queues) != 2 || !yes {
		t.Errorf("%d queues received %v frames, rings %v %s", len(queues), got, yes, why)
	}
}

// An engine is killed somewhere between the arrival of frames and their release. The next engine
// continues with the first frame that the killed one had not received. The kernel gets all slots back.
func TestRingResumes(t *testing.T) {
	for _, c := range []struct {
		place string
		kill  func(q *ringQueue)
		lost  uint32 // number of frames that the killed engine had received and that are lost
	}{
		{"before Recv", func(*ringQueue) {}, 0},
		{"within Recv, a slot taken", func(q *ringQueue) { q.ring.take() }, 1},
		{"before Release", func(q *ringQueue) { next(t, q) }, 12},
		{"within Release", func(q *ringQueue) { next(t, q); q.ring.release(q.ring.next - 5) }, 12},
		{"after Release", func(q *ringQueue) { next(t, q); q.Release() }, 12},
		{"between two reads from the socket", func(q *ringQueue) {
			b := new(packet.Batch)
			q.receive(b, q.ring.slotAt(q.ring.next))
			q.receive(b, q.ring.slotAt(q.ring.next))
		}, 2},
	} {
		t.Run(c.place, func(t *testing.T) {
			r := newRigOf(t, smallRing)
			r.longMTU()
			s := newSender(r)
			for range 9 { // the kills happen before, at and after the ring's end
				from := s.sent
				s.send(60, long, 60, 60, long, 60, 60, 60, long, long, 60, 60)
				c.kill(r.dev[1].Rx()[0].(*ringQueue))
				r.dev[1] = r.open(1) // the next engine finds the killed engine's queue as it was
				s.send(60, 60, long, 60)
				expect(t, r.dev[1].Rx()[0], from+c.lost, s.sent)
			}
			for range 2 { // shows that no slot is missing
				from := s.sent
				for range smallRing.Slots {
					s.send(60)
				}
				expect(t, r.dev[1].Rx()[0], from, s.sent)
			}
		})
	}
}

// An engine is killed after it has read a long frame and before it has marked the frame's slot. The
// slot then stands for no frame, and the next engine skips it.
func TestRingSkipsReadFrame(t *testing.T) {
	r := newRigOf(t, smallRing)
	r.longMTU()
	s := newSender(r)
	s.send(60, long)
	q := r.dev[1].Rx()[0].(*ringQueue)
	if numbers := next(t, q); len(numbers) != 2 { // frame 1 has left the socket's queue
		t.Fatalf("received %d frames", len(numbers))
	}
	q.ring.slotAt(1).Status = unix.TP_STATUS_USER | unix.TP_STATUS_COPY
	q.ring.next--
	q.ring.publish()
	r.dev[1] = r.open(1)
	s.send(60, long)
	expect(t, r.dev[1].Rx()[0], 2, 4)
}

// While the socket's queue is full, long frames are dropped and counted, and short ones arrive.
func TestRingCountsTruncated(t *testing.T) {
	r := newRigOf(t, smallRing)
	r.longMTU()
	if err := unix.SetsockoptInt(r.up[1].FDs()[0], unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 20_000); err != nil {
		t.Fatal(err)
	}
	s := newSender(r)
	for range 20 {
		s.send(long, 60)
	}
	b, rx := new(packet.Batch), r.dev[1].Rx()[0]
	dropped, received := 0, 0
	for end := time.Now().Add(30 * time.Second); dropped+received < 40 && time.Now().Before(end); {
		b.Reset()
		rx.Recv(b)
		for i := range b.Frames[:b.N] {
			if b.Frames[i].Drop == packet.DropRxFull {
				dropped++
			} else {
				received++
			}
		}
		rx.Release()
	}
	if dropped == 0 || received <= 20 || dropped+received != 40 {
		t.Errorf("%d frames received, %d dropped of 40", received, dropped)
	}
}

// After a device has gone down and up again, no error is left that would keep the socket readable.
func TestRingWokenClearsError(t *testing.T) {
	r := newRigOf(t, smallRing)
	rx := r.dev[1].Rx()[0]
	readable := func() bool {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(rx.WaitFD()), Events: unix.POLLIN}}, 0)
		return n > 0 && err == nil
	}
	r.ns[1].Exec("ip", "link", "set", "u0", "down")
	r.ns[1].Exec("ip", "link", "set", "u0", "up")
	if !readable() || rx.Arm() {
		t.Fatal("the socket reports no error")
	}
	rx.Woken()
	if readable() {
		t.Error("the socket is readable after Woken, without a frame")
	}
	s := newSender(r)
	s.send(60)
	if !readable() {
		t.Error("the socket is not readable, with a frame")
	}
	expect(t, rx, 0, 1)
}

package vhost_test

import (
	"fmt"
	"testing"

	"weft/internal/shm"
	"weft/packet"
	"weft/vhost"
	"weft/vhost/vhosttest"
)

// Wishes for a kick or a call lie in guest memory and outlive the device that
// made or met them. These tests have a device die at each step at which its
// successor, or the guest, might wait for the other without end: the successor
// must find what it was not told of, and tell what its predecessor has not.
//
// Feature sets are those in which a wish is written differently.
var wishes = []uint64{
	vhost.FeatureVersion1,
	vhost.FeatureVersion1 | vhost.FeatureEventIndex,
	vhost.FeatureVersion1 | vhost.FeatureRingPacked,
	vhost.FeatureVersion1 | vhost.FeatureRingPacked | vhost.FeatureEventIndex,
}

// successor is a guest and the devices that come and go.
type successor struct {
	*testing.T
	guest *vhosttest.Guest
	dev   *vhost.Device
	b     packet.Batch
	sent  int
}

// eachWish runs a test for each way of wishing, after some frames both ways, over
// the wrap of the indexes, so that no wish is still the one of the start.
func eachWish(t *testing.T, run func(s *successor)) {
	for _, features := range wishes {
		for before := range 5 {
			t.Run(fmt.Sprintf("%#x/%d", features, before), func(t *testing.T) {
				o := vhosttest.Options{Num: 4, Features: features, Interrupts: true, Seed: 65534}
				s := &successor{T: t, guest: guest(t, o)}
				s.dev = open(t, s.guest, nil)
				for range before {
					s.publish()
					s.receive(1)
					s.toGuest(1)
					s.fromRing()
				}
				s.calls()
				run(s)
			})
		}
	}
}

// dies closes the device as its engine's death does, and opens the next.
func (s *successor) dies() {
	s.Helper()
	s.dev.Close()
	s.dev = open(s, s.guest, func(d *vhost.DeviceSpec) { d.Resume = true })
}

// deaf opens another in its place that cannot call.
func (s *successor) deaf() {
	s.Helper()
	s.dev.Close()
	s.dev = open(s, s.guest, func(d *vhost.DeviceSpec) {
		d.Resume = true
		for i := range d.Vrings {
			d.Vrings[i].Call = -1
		}
	})
}

// publish has the guest transmit a frame, and tells whether it kicked.
func (s *successor) publish() bool {
	s.Helper()
	q := s.guest.Tx[0]
	kicks := q.Kicks
	if !q.Send(random(uint64(s.sent), 100)) {
		s.Fatal("no buffer")
	}
	s.sent++
	q.Publish()
	return q.Kicks > kicks
}

// receive takes n frames from the guest, and gives their buffers back.
func (s *successor) receive(n int) {
	s.Helper()
	s.b.Reset()
	if got := s.dev.Rx()[0].Recv(&s.b); got != n {
		s.Fatalf("%d frames received, expected %d: %s", got, n, s.dev.Rx()[0].Fault())
	}
	s.dev.Rx()[0].Release()
}

// toGuest sends frames that another guest would.
func (s *successor) toGuest(n int) {
	s.Helper()
	s.gather(n)
	s.dev.Tx()[0].Flush()
}

// gather is toGuest without the flush.
func (s *successor) gather(n int) {
	s.Helper()
	from := guest(s, vhosttest.Options{Features: vhost.FeatureVersion1})
	a := open(s, from, nil)
	for range n {
		from.Tx[0].Send(random(9, 100))
	}
	from.Tx[0].Publish()
	s.b.Reset()
	a.Rx()[0].Recv(&s.b)
	if got := s.dev.Tx()[0].Send(&s.b, all[:n]); got != n {
		s.Fatalf("%d of %d frames sent", got, n)
	}
}

// fromRing has the guest take a frame and offer its buffer again.
func (s *successor) fromRing() {
	s.Helper()
	if _, _, ok := s.guest.Rx[0].Recv(nil); !ok {
		s.Fatal("no frame for the guest")
	}
	s.guest.Rx[0].Refill()
}

// calls takes all calls back, and tells for which of the rings there were any.
func (s *successor) calls() (rx, tx bool) {
	return s.guest.Rx[0].WaitCall(0), s.guest.Tx[0].WaitCall(0)
}

func (s *successor) arm(want bool) {
	s.Helper()
	if got := s.dev.Rx()[0].Arm(); got != want {
		s.Fatalf("Arm says %v, expected %v", got, want)
	}
}

// The guest was not to kick. With the event index it may all the same, once in
// 65536 chains.
func TestSuccessorFindsUnkicked(t *testing.T) {
	eachWish(t, func(s *successor) {
		s.dev.Rx()[0].Disarm()
		s.publish()
		shm.DrainOwn(s.dev.Rx()[0].WaitFD())
		s.dies()
		s.arm(true)
		s.receive(1)
	})
}

// The guest kicked, and the device died having read the kick and nothing else.
func TestSuccessorFindsDrained(t *testing.T) {
	eachWish(t, func(s *successor) {
		s.arm(false)
		if !s.publish() {
			s.Fatal("no kick")
		}
		s.dev.Rx()[0].Woken()
		s.dies()
		s.arm(true)
		s.receive(1)
	})
}

// The device died having taken a frame, published it or not; the wish of before
// that is still there.
func TestSuccessorFindsTaken(t *testing.T) {
	eachWish(t, func(s *successor) {
		s.arm(false)
		s.publish()
		s.b.Reset()
		s.dev.Rx()[0].Recv(&s.b)
		s.dies()
		s.arm(true)
		s.receive(1)
		s.publish()
		s.receive(1)
		s.dies()
		s.arm(false)
	})
}

// The successor sleeps at once: the first chain after that kicks, wherever its
// predecessor's wish was, and one that came between its look and its sleep too.
func TestSuccessorIsKicked(t *testing.T) {
	eachWish(t, func(s *successor) {
		for _, armed := range []bool{true, false} {
			if s.arm(false); !armed {
				s.dev.Rx()[0].Disarm()
			}
			s.dies()
			shm.DrainOwn(s.dev.Rx()[0].WaitFD())
			s.arm(false)
			if !s.publish() || !readable(s.dev.Rx()[0].WaitFD(), 0) {
				s.Fatalf("predecessor armed %v: no kick", armed)
			}
			s.arm(true)
			s.receive(1)
		}
	})
}

// The device died between a publish and its call, on either ring: the guest,
// which has asked for one and sleeps, hears of it from the successor, though
// nothing more happens.
func TestSuccessorCalls(t *testing.T) {
	eachWish(t, func(s *successor) {
		s.deaf()
		s.guest.Rx[0].WantCalls(true)
		s.guest.Tx[0].WantCalls(true)
		s.publish()
		s.receive(1)
		s.toGuest(1)
		s.calls()
		s.dies()
		if rx, tx := s.calls(); !rx || !tx {
			s.Fatalf("calls: receive ring %v, transmit ring %v", rx, tx)
		}
		s.fromRing()
		if s.guest.Tx[0].Reclaim() != 1 {
			s.Fatal("no buffer came back")
		}
	})
}

// What the guest wished before the death may be of an element that it has not seen:
// the successor's first publish calls in any case, and those after it as the guest
// wishes.
func TestSuccessorCallsOnce(t *testing.T) {
	eachWish(t, func(s *successor) {
		s.guest.Rx[0].WantCalls(false)
		s.dies()
		s.calls()
		s.toGuest(1)
		if rx, _ := s.calls(); !rx {
			s.Fatal("no call with the first element")
		}
		s.fromRing()
		s.guest.Rx[0].WantCalls(true)
		s.toGuest(1)
		if rx, _ := s.calls(); !rx {
			s.Fatal("no call with the second")
		}
		s.fromRing()
		s.guest.Rx[0].WantCalls(false)
		s.toGuest(1)
		if rx, _ := s.calls(); rx {
			s.Fatal("a call that nobody wants")
		}
	})
}

// postponing is a guest whose rings are long enough to postpone, after its first
// frame, which calls in any case.
func postponing(t *testing.T, features uint64, num int) *successor {
	s := &successor{T: t, guest: guest(t, vhosttest.Options{Num: num, Features: features, Interrupts: true})}
	s.dev = open(t, s.guest, nil)
	s.toGuest(1)
	s.fromRing()
	s.calls()
	s.guest.Rx[0].WantCalls(true)
	return s
}

// A postponed flush shows the guest nothing; the next one all, with one call, though
// nothing is new.
func TestAPostponedFlushComes(t *testing.T) {
	for _, features := range wishes {
		s := postponing(t, features, 256)
		s.gather(1)
		if !s.dev.Tx()[0].Postpone() {
			t.Fatalf("%#x: not postponed", features)
		}
		if rx, _ := s.calls(); rx {
			t.Fatalf("%#x: called for what is not shown", features)
		}
		if _, _, ok := s.guest.Rx[0].Recv(nil); ok {
			t.Fatalf("%#x: shown before the flush", features)
		}
		s.dev.Tx()[0].Flush()
		if rx, _ := s.calls(); !rx {
			t.Fatalf("%#x: the call never comes", features)
		}
		s.fromRing()
	}
}

// What a predecessor has not shown the guest it never sees, and its buffer is used
// again.
func TestAPostponedFlushEndsWithItsDevice(t *testing.T) {
	for _, features := range wishes {
		s := postponing(t, features, 256)
		s.gather(2)
		s.dev.Tx()[0].Postpone()
		s.dies()
		s.toGuest(1)
		s.fromRing()
		if _, _, ok := s.guest.Rx[0].Recv(nil); ok || s.guest.Rx[0].Misused != 0 {
			t.Fatalf("%#x: a frame too many, or %d elements that name no chain", features, s.guest.Rx[0].Misused)
		}
	}
}

// Frames are kept from the guest up to a number, which depends on how many its ring
// holds, and no longer.
func TestPostponedFlushesHaveALimit(t *testing.T) {
	for num, want := range map[int][]bool{1024: {true, false, true, false}, 256: {true, false, true, false}, 128: {false, false}} {
		s := postponing(t, vhost.FeatureVersion1|vhost.FeatureEventIndex, num)
		called := false
		for n, want := range want {
			s.gather(packet.BatchSize)
			if owed := s.dev.Tx()[0].Postpone(); owed != want {
				t.Fatalf("ring of %d: batch %d postponed: %v", num, n, owed)
			}
			if rx, _ := s.calls(); rx != (!want && !called) { // it wants one call
				t.Fatalf("ring of %d: called with batch %d: %v", num, n, rx)
			}
			called = called || !want
		}
	}
}

// A guest that has no buffers left is shown at once what was put into them: it can
// make others available only then.
func TestNothingIsPostponedForARingThatHasRunDry(t *testing.T) {
	for _, features := range wishes {
		s := &successor{T: t, guest: guest(t, vhosttest.Options{Num: 256, Features: features, Interrupts: true})}
		s.dev = open(t, s.guest, nil)
		for range 7 {
			s.toGuest(packet.BatchSize)
		}
		s.gather(8)
		if !s.dev.Tx()[0].Postpone() {
			t.Fatalf("%#x: not postponed with 24 buffers left", features)
		}
		s.gather(24)
		if s.dev.Tx()[0].Postpone() {
			t.Fatalf("%#x: postponed with none left", features)
		}
		if n := s.guest.Rx[0].UsedIndex(); n != 256 {
			t.Fatalf("%#x: %d buffers used, expected 256", features, n)
		}
	}
}

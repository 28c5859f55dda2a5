// SPDX-License-Identifier: Apache-2.0

package vhost_test

import (
	"fmt"
	"testing"

	"weft/internal/shm"
	"weft/packet"
	"weft/vhost"
	"weft/vhost/vhosttest"
)

// In these tests, a device dies at a step after which the next device and the guest might wait for
// each other forever. Their requests for calls and kicks are in guest memory, so they outlive the
// device. Each feature set stores them in another way.
var wishes = []uint64{
	vhost.FeatureVersion1,
	vhost.FeatureVersion1 | vhost.FeatureEventIndex,
	vhost.FeatureVersion1 | vhost.FeatureRingPacked,
	vhost.FeatureVersion1 | vhost.FeatureRingPacked | vhost.FeatureEventIndex,
}

// successor is a guest with the device that currently serves it.
type successor struct {
	*testing.T
	guest *vhosttest.Guest
	dev   *vhost.Device
	b     packet.Batch
	sent  int
}

// eachWish runs a test for each feature set. Before the test, the ring indexes have wrapped around, so
// guest memory has outdated requests for kicks and calls.
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
				s.takeCalls()
				run(s)
			})
		}
	}
}

// dies closes the device without publishing, and opens the next one.
func (s *successor) dies() {
	s.Helper()
	s.dev.Close()
	s.dev = open(s, s.guest, func(d *vhost.DeviceSpec) { d.Resume = true })
}

// deaf replaces the device by one that has no call eventfds.
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

// receive takes n frames from the device and releases their buffers.
func (s *successor) receive(n int) {
	s.Helper()
	s.b.Reset()
	if got := s.dev.Rx()[0].Recv(&s.b); got != n {
		s.Fatalf("%d frames received, expected %d: %s", got, n, s.dev.Rx()[0].Fault())
	}
	s.dev.Rx()[0].Release()
}

// toGuest sends n frames to the guest.
func (s *successor) toGuest(n int) {
	s.Helper()
	s.gather(n)
	s.dev.Tx()[0].Flush()
}

// gather writes n frames for the guest, as toGuest does, but does not flush them.
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
	if got := s.dev.Tx()[0].Send(&s.b, allOffloads[:n]); got != n {
		s.Fatalf("%d of %d frames sent", got, n)
	}
}

func (s *successor) fromRing() {
	s.Helper()
	if _, _, ok := s.guest.Rx[0].Recv(nil); !ok {
		s.Fatal("no frame for the guest")
	}
	s.guest.Rx[0].Refill()
}

// takeCalls clears all call eventfds, and reports which rings had a call.
func (s *successor) takeCalls() (rx, tx bool) {
	return s.guest.Rx[0].WaitCall(0), s.guest.Tx[0].WaitCall(0)
}

func (s *successor) arm(want bool) {
	s.Helper()
	if got := s.dev.Rx()[0].Arm(); got != want {
		s.Fatalf("Arm says %v, expected %v", got, want)
	}
}

// The previous device died before it had requested kicks. The next device still finds the chain that
// the guest has offered.
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

// The previous device had already read the kick for a chain. The next device still
// finds the chain.
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

// A device dies after it has taken a frame. The next device finds the chains behind this frame.
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

// The next device goes to sleep at once. A chain that the guest then offers either causes a kick, or
// the device finds it before it sleeps.
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

// The device dies after it has published chains and before it has called. The next device calls.
func TestSuccessorCalls(t *testing.T) {
	eachWish(t, func(s *successor) {
		s.deaf()
		s.guest.Rx[0].WantCalls(true)
		s.guest.Tx[0].WantCalls(true)
		s.publish()
		s.receive(1)
		s.toGuest(1)
		s.takeCalls()
		s.dies()
		if rx, tx := s.takeCalls(); !rx || !tx {
			s.Fatalf("calls: receive ring %v, transmit ring %v", rx, tx)
		}
		s.fromRing()
		if s.guest.Tx[0].Reclaim() != 1 {
			s.Fatal("no buffer came back")
		}
	})
}

// The first publish of a new device always calls. The guest may have asked for a call at a used
// element that the old device did not publish.
func TestSuccessorCallsOnce(t *testing.T) {
	eachWish(t, func(s *successor) {
		s.guest.Rx[0].WantCalls(false)
		s.dies()
		s.takeCalls()
		s.toGuest(1)
		if rx, _ := s.takeCalls(); !rx {
			s.Fatal("no call with the first element")
		}
		s.fromRing()
		s.guest.Rx[0].WantCalls(true)
		s.toGuest(1)
		if rx, _ := s.takeCalls(); !rx {
			s.Fatal("no call with the second")
		}
		s.fromRing()
		s.guest.Rx[0].WantCalls(false)
		s.toGuest(1)
		if rx, _ := s.takeCalls(); rx {
			s.Fatal("a call that nobody wants")
		}
	})
}

// postponing returns a guest with rings of num descriptors. Its first frame has already passed,
// because the first publish of a device always calls.
func postponing(t *testing.T, features uint64, num int) *successor {
	s := &successor{T: t, guest: guest(t, vhosttest.Options{Num: num, Features: features, Interrupts: true})}
	s.dev = open(t, s.guest, nil)
	s.toGuest(1)
	s.fromRing()
	s.takeCalls()
	s.guest.Rx[0].WantCalls(true)
	return s
}

// A flush that is postponed publishes nothing. The next flush publishes everything,
// with one call.
func TestAPostponedFlushComes(t *testing.T) {
	for _, features := range wishes {
		s := postponing(t, features, 256)
		s.gather(1)
		if !s.dev.Tx()[0].Postpone() {
			t.Fatalf("%#x: not postponed", features)
		}
		if rx, _ := s.takeCalls(); rx {
			t.Fatalf("%#x: called for what is not shown", features)
		}
		if _, _, ok := s.guest.Rx[0].Recv(nil); ok {
			t.Fatalf("%#x: shown before the flush", features)
		}
		s.dev.Tx()[0].Flush()
		if rx, _ := s.takeCalls(); !rx {
			t.Fatalf("%#x: the call never comes", features)
		}
		s.fromRing()
	}
}

// A device dies with chains that it has completed but not published. The guest never sees them as
// used. The next device uses their buffers again.
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

// The number of frames that wait for a flush has a limit, which depends on the length of the ring.
func TestPostponedFlushesHaveALimit(t *testing.T) {
	for num, want := range map[int][]bool{1024: {true, false, true, false}, 256: {true, false, true, false}, 128: {false, false}} {
		s := postponing(t, vhost.FeatureVersion1|vhost.FeatureEventIndex, num)
		called := false
		for n, want := range want {
			s.gather(packet.BatchSize)
			if owed := s.dev.Tx()[0].Postpone(); owed != want {
				t.Fatalf("ring of %d: batch %d postponed: %v", num, n, owed)
			}
			if rx, _ := s.takeCalls(); rx != (!want && !called) { // one call is due
				t.Fatalf("ring of %d: called with batch %d: %v", num, n, rx)
			}
			called = called || !want
		}
	}
}

// A flush is not postponed if the guest has no free buffers.
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

// SPDX-License-Identifier: Apache-2.0

package vhost_test

import (
	"testing"

	"weft/packet"
	"weft/port"
	"weft/vhost"
	"weft/vhost/vhosttest"
)

// TestPrefetchChangesNothing: Prefetch changes neither the frames nor their order, however often the
// worker calls it and whatever size the next batch has.
func TestPrefetchChangesNothing(t *testing.T) {
	for _, features := range []uint64{polling, polling | vhost.FeatureRingPacked} {
		s := newStream(t, vhosttest.Options{Num: 256, Features: features, Seed: 65500})
		for round, reserved := range []int{0, 0, 1, 20, 0, 31, 0, 0, 0} {
			s.Tx[0].Reclaim()
			s.send(min(100, s.Tx[0].Free()))
			s.b.Reset()
			s.b.Reserve(reserved)
			if n := s.receive(); n < 1 || n > packet.BatchSize-reserved {
				t.Fatalf("received %d frames with %d reserved", n, reserved)
			}
			for range round {
				s.rx.Rx()[0].(port.Prefetcher).Prefetch()
			}
			s.release()
		}
		for s.taken < s.sent {
			s.b.Reset()
			if s.receive() < 1 {
				t.Fatalf("%d of %d frames", s.taken, s.sent)
			}
			s.release()
		}
		if s.Tx[0].Reclaim(); s.Tx[0].Misused != 0 || s.Tx[0].Free() != s.Tx[0].Slots() {
			t.Errorf("%d of %d chains came back, %d misused", s.Tx[0].Free(), s.Tx[0].Slots(), s.Tx[0].Misused)
		}
	}
}

// TestPrefetchOfBadHead: a bad head in the next batch breaks the device only after the frames before
// the head have been received.
func TestPrefetchOfBadHead(t *testing.T) {
	for _, before := range []int{0, 5} {
		s := newStream(t, vhosttest.Options{Num: 256, Features: polling})
		s.send(packet.BatchSize + before)
		s.Tx[0].Offer(256)
		s.send(packet.BatchSize)
		s.take(packet.BatchSize)
		s.rx.Rx()[0].(port.Prefetcher).Prefetch()
		if before > 0 {
			s.take(before)
		}
		s.b.Reset()
		if n := s.rx.Rx()[0].Recv(s.b); n != -1 || s.rx.Rx()[0].Fault() == "" {
			t.Errorf("%d frames, fault %q", n, s.rx.Rx()[0].Fault())
		}
	}
}

// SPDX-License-Identifier: Apache-2.0

package vhost_test

import (
	"bytes"
	"fmt"
	"testing"

	"weft/packet"
	"weft/port"
	"weft/vhost"
	"weft/vhost/vhosttest"
)

// stream is a guest that transmits full batches.
type stream struct {
	*testing.T
	*vhosttest.Guest
	rx          *vhost.Device
	b           *packet.Batch
	sent, taken int
}

func newStream(t *testing.T, o vhosttest.Options) *stream {
	s := &stream{T: t, Guest: guest(t, o), b: new(packet.Batch)}
	s.rx = open(t, s.Guest, nil)
	return s
}

func (s *stream) send(n int) {
	s.Helper()
	for range n {
		if !s.Tx[0].Send(random(uint64(s.sent), 100)) {
			s.Fatalf("no buffer for frame %d", s.sent)
		}
		s.sent++
	}
	s.Tx[0].Publish()
}

// take receives n frames and compares each one with the frame sent.
func (s *stream) take(n int) {
	s.Helper()
	s.b.Reset()
	if before, got := s.taken, s.receive(); got != n {
		s.Fatalf("received %d frames after %d, expected %d", got, before, n)
	}
}

// receive receives frames into the empty batch s.b. It compares each frame with the frame that was
// sent, and returns their number.
func (s *stream) receive() int {
	s.Helper()
	n := s.rx.Rx()[0].Recv(s.b)
	for i := range s.b.Frames[:max(n, 0)] {
		frame := make([]byte, s.b.Frames[i].Len())
		s.b.Gather(&s.b.Frames[i], frame)
		if !bytes.Equal(frame, random(uint64(s.taken), 100)) {
			s.Fatalf("frame %d is another", s.taken)
		}
		s.taken++
	}
	return n
}

func (s *stream) releaseLate() { s.rx.Rx()[0].(port.Keeper).ReleaseLate() }
func (s *stream) release()     { s.rx.Rx()[0].Release() }

// shown checks that the driver sees exactly n used chains of its ring.
func (s *stream) shown(n int) {
	s.Helper()
	if got := s.Tx[0].UsedIndex() - s.Tx[0].Start(); int(got) != n {
		s.Fatalf("%d chains are used after %d frames, expected %d", got, s.taken, n)
	}
}

const polling = vhost.FeatureVersion1 | vhost.FeatureMergeable

// TestNewestAreRetained: a driver that polls does not see the newest used chains until no more frames
// come.
func TestNewestAreRetained(t *testing.T) {
	for _, interrupts := range []bool{false, true} {
		s := newStream(t, vhosttest.Options{Num: 256, Features: polling, Interrupts: interrupts, Seed: 65500})
		if interrupts { // the device stops its calls only after it has seen that the driver disabled them
			s.Tx[0].WantCalls(false)
			for range 2 {
				s.send(1)
				s.take(1)
				s.releaseLate()
			}
		}
		before := s.taken
		for n, want := range []int{0, 0, 2, 2, 4, 4, 6} {
			s.send(packet.BatchSize)
			s.take(packet.BatchSize)
			s.releaseLate()
			s.shown(before + want*packet.BatchSize)
			s.Tx[0].Reclaim()
			if n == 4 {
				s.releaseLate()
				s.shown(before + want*packet.BatchSize)
			}
		}
		s.release()
		s.shown(s.taken)
		s.Tx[0].Reclaim()
		if s.Tx[0].Misused != 0 || s.Tx[0].Free() != s.Tx[0].Slots() {
			t.Fatalf("%d elements name no chain, %d of %d buffers came back", s.Tx[0].Misused, s.Tx[0].Free(), s.Tx[0].Slots())
		}
	}
}

// TestNothingIsRetained: the device publishes all used chains at once if the driver wants calls, if
// the ring is packed, or if there is no record.
func TestNothingIsRetained(t *testing.T) {
	for name, o := range map[string]vhosttest.Options{
		"calls":       {Features: polling, Interrupts: true},
		"event index": {Features: polling | vhost.FeatureEventIndex, Interrupts: true},
		"packed":      {Features: polling | vhost.FeatureRingPacked},
		"inflight":    {Features: polling, Inflight: true},
		"no record":   {Features: polling},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStream(t, o)
			if name == "no record" {
				s.rx.Close()
				s.rx = open(t, s.Guest, func(s *vhost.DeviceSpec) { s.Record = 0 })
			}
			for range 5 {
				s.send(packet.BatchSize)
				s.take(packet.BatchSize)
				s.releaseLate()
				s.Tx[0].Reclaim()
				if free := s.Tx[0].Free(); free != s.Tx[0].Slots() {
					t.Fatalf("%d of %d buffers came back after %d frames", free, s.Tx[0].Slots(), s.taken)
				}
			}
		})
	}
}

// TestRetainedAreNotReceivedAgain: a device dies with retained chains: completed but not published.
// The next device publishes them. It receives only those frames again that were never released.
func TestRetainedAreNotReceivedAgain(t *testing.T) {
	for batches := range 5 {
		for _, unreleased := range []bool{false, true} {
			t.Run(fmt.Sprintf("%d,%v", batches, unreleased), func(t *testing.T) {
				s := newStream(t, vhosttest.Options{Num: 256, Features: polling, Seed: 65510})
				for range 3 { // three devices die one after another
					for range batches {
						s.send(packet.BatchSize)
						s.take(packet.BatchSize)
						s.releaseLate()
					}
					done := s.taken
					if unreleased {
						s.send(7)
						s.take(7)
						s.taken = done
					}
					s.rx.Close()
					s.rx = open(t, s.Guest, func(s *vhost.DeviceSpec) { s.Resume = true })
					s.shown(done)
					if unreleased {
						s.take(7)
						s.release()
					}
					s.take(0)
					s.Tx[0].Reclaim()
				}
				s.send(3)
				s.take(3)
				s.release()
				s.shown(s.taken)
				if s.Tx[0].Misused != 0 {
					t.Fatalf("%d elements name no chain", s.Tx[0].Misused)
				}
			})
		}
	}
}

// TestRecordOfAnotherTime: the device ignores a record that does not agree with the used index.
// Without Resume, it ignores every record.
func TestRecordOfAnotherTime(t *testing.T) {
	for _, resume := range []bool{false, true} {
		s := newStream(t, vhosttest.Options{Num: 256, Features: polling, Seed: 100})
		for range 2 {
			s.send(packet.BatchSize)
			s.take(packet.BatchSize)
			s.releaseLate()
		}
		s.rx.Close()
		if resume {
			s.Tx[0].SetUsed(100 + 400) // beyond the record's number
		}
		s.rx = open(t, s.Guest, func(s *vhost.DeviceSpec) {
			s.Resume = resume
			for i := range s.Vrings {
				s.Vrings[i].LastAvail = 100
			}
		})
		s.b.Reset()
		got := s.rx.Rx()[0].Recv(s.b)
		if resume && got >= 0 || !resume && got != packet.BatchSize {
			t.Fatalf("resumed: %v: received %d frames", resume, got)
		}
	}
}

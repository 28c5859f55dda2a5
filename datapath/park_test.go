// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"fmt"
	"math/rand"
	"testing"

	"weft/internal/shm"
	"weft/port"
	"weft/port/porttest"
	"weft/vhost"
	"weft/vhost/vhosttest"
)

// parkedRig returns a worker whose clock stands still. "ports" is the number of its ports, from 1 on. Port 1
// is busy, and the others are parked. Port 3 is a tap. All frames go to port 2, which is a guest.
func parkedRig(t testing.TB, ports int) *rig {
	r := newRig(t, testSizes)
	r.w.waiter.parking.afterNS = parkAfterNS
	r.w.fixed = r.w.clock()
	r.turn()
	for no := range uint32(ports) {
		r.addPort(no+1, porttest.Options{Polled: no == 2}, false)
		r.install(no, no+1, 0xa, output(2))
	}
	r.tx(2).Discard.Store(true)
	r.busyTurn()
	r.w.fixed += parkAfterNS
	for range ports/maxParks + 1 {
		r.busyTurn()
	}
	r.equal("parked queues", r.sh.Counters.ParkedQueues, uint64(ports-1))
	return r
}

// busyTurn runs a pass in which port 1 has a frame, and fails if it was not received.
func (r *rig) busyTurn() {
	r.t.Helper()
	before := r.sh.Ports[1].RxPackets
	r.inject(1, ethernet(0xa, 60, 0))
	r.turn()
	r.equal("frames of the busy port", r.sh.Ports[1].RxPackets, before+1)
}

// Passes do not visit parked queues. A frame makes its queue awake when the worker asks epoll next. A queue
// that stays empty is parked again.
func TestIdleQueuesAreParked(t *testing.T) {
	r := parkedRig(t, 40)
	recvs := r.rx(40).Recvs.Load()
	for _, no := range []uint32{3, 40} {
		r.w.fixed += parkedEveryNS
		r.busyTurn() // asks epoll
		r.inject(no, ethernet(0xa, 60, 0))
		r.w.fixed += parkedEveryNS - 1
		r.busyTurn()
		r.equal(fmt.Sprintf("frames of port %d before the interval has passed", no), r.sh.Ports[no].RxPackets, 0)
		r.w.fixed++
		r.busyTurn()
		r.equal(fmt.Sprintf("frames of port %d", no), r.sh.Ports[no].RxPackets, 1)
		r.equal("parked queues", r.sh.Counters.ParkedQueues, 38)
		if r.rx(no).Armed() {
			t.Errorf("port %d is awake and armed", no)
		}
		r.w.fixed += parkAfterNS
		r.busyTurn()
		r.equal("parked queues", r.sh.Counters.ParkedQueues, 39)
	}
	r.equal("visits of a parked queue", r.rx(40).Recvs.Load(), recvs+2) // one with the frame and one without
	r.equal("visits of another parked queue", r.rx(39).Recvs.Load(), recvs)
}

// The worker does not park queues if only a few are idle, and never parks queues that cannot wake it up.
func TestFewIdleQueuesStayAwake(t *testing.T) {
	r := newRig(t, testSizes)
	r.w.waiter.parking.afterNS = parkAfterNS
	r.w.fixed = r.w.clock()
	for no := range uint32(maxIdleAwake) {
		r.addPort(no+1, porttest.Options{}, false)
	}
	r.turn()
	r.w.fixed += 2 * parkAfterNS
	r.turn()
	r.turn()
	r.equal("parked of a few", r.sh.Counters.ParkedQueues, 0)
	for no := range uint32(10) {
		d := porttest.New(1, porttest.Options{})
		r.ports[100+no] = d
		rx := d.Rx()
		if no < 5 {
			rx = []port.Rx{unwatched{rx[0]}}
		}
		if err := r.w.addPort(&PortQueues{Port: 100 + no, Rx: rx, Tx: d.Tx()[0], Tunnel: no >= 5}); err != nil {
			t.Fatal(err)
		}
	}
	r.w.fixed += 2 * parkAfterNS
	r.turn()
	r.turn()
	r.equal("parked of 14, 10 of which cannot be", r.sh.Counters.ParkedQueues, maxIdleAwake)
}

type unwatched struct{ port.Rx }

func (unwatched) WaitFD() int { return -1 }

// lateRx is a receive queue that gets a frame right before Arm.
type lateRx struct {
	*porttest.Rx
	frame []byte
}

func (q *lateRx) Arm() bool {
	if q.frame != nil {
		q.Inject(q.frame)
		q.frame = nil
	}
	return q.Rx.Arm()
}

// A frame that arrives after the last visit and before Arm keeps its queue awake.
func TestFrameBeforeArmKeepsAwake(t *testing.T) {
	r := newRig(t, testSizes)
	r.w.fixed = r.w.clock()
	for no := range uint32(8) {
		r.addPort(no+1, porttest.Options{}, false)
		r.install(no, no+1, 0xa, output(2))
	}
	r.tx(2).Discard.Store(true)
	r.turn()
	late := &lateRx{Rx: r.rx(8), frame: ethernet(0xa, 60, 0)}
	r.w.queues.queue(7).rx = late
	r.w.waiter.parking.afterNS = parkAfterNS
	r.w.fixed += parkAfterNS
	r.turn()
	r.equal("parked queues", r.sh.Counters.ParkedQueues, 7)
	r.turn()
	r.equal("frames of the late queue", r.sh.Ports[8].RxPackets, 1)
}

// If another worker finds the fault of a device, the device's parked queue becomes awake at once. Otherwise
// the worker finds the fault, or a frame without a notification, when it looks into parked queues.
func TestParkedQueueIsLookedAt(t *testing.T) {
	r := parkedRig(t, 40)
	r.rx(7).Break()
	shm.SignalOwn(r.w.config.CommandEvent)
	r.w.fixed += parkedEveryNS
	r.busyTurn()
	r.mustFault(7, "broken")
	r.rx(8).Break()
	r.rx(9).Disarm() // as if the guest ignored the request
	r.inject(9, ethernet(0xa, 60, 0))
	for range 50 {
		r.w.fixed += lookParkedNS / 40
		r.busyTurn()
	}
	r.mustFault(8, "broken")
	r.equal("frames without a notification", r.sh.Ports[9].RxPackets, 1)
	r.equal("parked queues", r.sh.Counters.ParkedQueues, 37)
}

// Parked queues stay armed while the worker sleeps. A frame of one of them ends the sleep.
func TestSleepWithParkedQueues(t *testing.T) {
	r := parkedRig(t, 40)
	r.w.config.SpinUS = 50
	r.w.fixed += parkedEveryNS
	r.turn()
	arms := r.rx(40).Arms.Load()
	r.inject(39, ethernet(0xa, 60, 0))
	if r.w.fixed += 60_000; r.w.now-r.w.lastBusy > r.w.spinNS() {
		t.Fatal("the worker has slept too early")
	}
	r.w.sleep()
	r.equal("sleeps", r.sh.Counters.Sleeps, 1)
	r.turn()
	r.equal("frames of port 39", r.sh.Ports[39].RxPackets, 1)
	r.equal("calls of Arm", r.rx(40).Arms.Load(), arms)
	if r.rx(39).Armed() || !r.rx(40).Armed() {
		t.Errorf("armed: awake %v, parked %v", r.rx(39).Armed(), r.rx(40).Armed())
	}
}

// A parked port can be detached, and attached again with frames that wait.
func TestDetachParkedPort(t *testing.T) {
	r := parkedRig(t, 40)
	for _, no := range []uint32{3, 20, 40} {
		r.w.detach(no)
		r.inject(no, ethernet(0xa, 60, 0))
		if err := r.w.addPort(&PortQueues{Port: no, Rx: r.ports[no].Rx(), Tx: r.tx(no)}); err != nil {
			t.Fatal(err)
		}
		r.busyTurn()
		r.equal(fmt.Sprintf("frames of port %d", no), r.sh.Ports[no].RxPackets, 1)
	}
	r.equal("parked queues", r.sh.Counters.ParkedQueues, 36)
	r.equal("taps", uint64(r.w.queues.taps), 1)
	for i := range r.w.queues.count {
		r.equal("place", uint64(r.w.queues.queue(i).place), uint64(i))
	}
}

// A guest whose memory fails while its queue is parked or armed loses its own port only.
// Frames that other parked queues have at that time arrive.
func TestFaultOfParkedQueue(t *testing.T) {
	panicOnFault(t)
	r := newRig(t, testSizes)
	r.w.fixed = r.w.clock()
	var guests []*vhosttest.Guest
	for no := range uint32(8) {
		g, d := openGuest(t, vhosttest.Options{})
		guests = append(guests, g)
		if err := r.w.addPort(&PortQueues{Port: no + 1, Rx: d.Rx(), Tx: d.Tx()[0]}); err != nil {
			t.Fatal(err)
		}
		r.install(no, no+1, 0xa, output(1))
	}
	r.turn()
	r.w.waiter.parking.afterNS, r.w.waiter.parking.lookNS = parkAfterNS, ^uint64(0)
	r.w.fixed += parkAfterNS
	r.turn()
	r.equal("parked queues", r.sh.Counters.ParkedQueues, 8)
	for _, g := range guests[4:] {
		if !g.Tx[0].Send(ethernet(0xa, 60, 0)) {
			t.Fatal("transmit ring full")
		}
		g.Tx[0].Publish()
	}
	if err := guests[5].Truncate(0); err != nil {
		t.Fatal(err)
	}
	r.turn()
	r.turn()
	r.mustFault(6, "memory failed")
	for _, no := range []int{5, 7, 8} {
		r.equal(fmt.Sprintf("frames of port %d", no), r.sh.Ports[no].RxPackets, 1)
	}
}

func openGuest(t testing.TB, o vhosttest.Options) (*vhosttest.Guest, port.Device) {
	g, err := vhosttest.New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(g.Close)
	d, err := g.Open(nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(d.Close)
	return g, d
}

// A worker that parks each queue as soon as it is empty misses no frame of guests that send at random
// times. In this test it neither sleeps nor looks into parked queues, so only notifications make the
// queues awake.
func TestNoWakeupIsLost(t *testing.T) {
	for _, features := range []uint64{vhost.FeatureVersion1, vhost.FeatureVersion1 | vhost.FeatureEventIndex,
		vhost.FeatureVersion1 | vhost.FeatureRingPacked, vhost.FeatureVersion1 | vhost.FeatureRingPacked | vhost.FeatureEventIndex} {
		t.Run(fmt.Sprintf("%#x", features), func(t *testing.T) {
			r := newRig(t, testSizes)
			r.w.waiter.parking.afterNS, r.w.waiter.parking.lookNS = 0, ^uint64(0)
			var guests []*vhosttest.Guest
			for no := range uint32(8) {
				g, d := openGuest(t, vhosttest.Options{Features: features})
				guests = append(guests, g)
				if err := r.w.addPort(&PortQueues{Port: no + 1, Rx: d.Rx(), Tx: d.Tx()[0]}); err != nil {
					t.Fatal(err)
				}
				r.install(no, no+1, 0xa) // drops
			}
			r.run(forever)
			await(t, "empty queues to be parked", func() bool { return r.sh.Counters.ParkedQueues == uint64(len(guests)) })
			rng := rand.New(rand.NewSource(1))
			frame := ethernet(0xa, 60, 0)
			sent := make([]int, len(guests))
			kicked := 0
			for range 3000 {
				i := rng.Intn(len(guests))
				q := guests[i].Tx[0]
				kicks := q.Kicks
				for q.Reclaim(); !q.Send(frame); q.Reclaim() {
				}
				q.Publish()
				sent[i]++
				kicked += q.Kicks - kicks
				for range rng.Intn(2000) {
				}
			}
			await(t, "all frames", func() bool {
				for i, n := range sent {
					if r.sh.Ports[i+1].RxPackets != uint64(n) {
						return false
					}
				}
				return true
			})
			if kicked == 0 {
				t.Error("no queue was parked: the test is void")
			}
		})
	}
}

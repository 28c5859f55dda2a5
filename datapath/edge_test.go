// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"encoding/binary"
	"math"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"weft/vhost"
	"weft/vhost/vhosttest"
)

// The worker never reads a guest's kick eventfd. Each kick still wakes the worker,
// and a permanently readable eventfd does not keep it awake.
func TestKicksAreEdges(t *testing.T) {
	r := newRig(t, testSizes)
	g, err := vhosttest.New(vhosttest.Options{Features: vhost.FeatureVersion1 | vhost.FeatureEventIndex})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(g.Close)
	d, err := g.Open(nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(d.Close)
	if err := r.w.addPort(&PortQueues{Port: 1, Rx: d.Rx(), Tx: d.Tx()[0]}); err != nil {
		t.Fatal(err)
	}
	r.install(0, 1, 0xa) // held frames would shorten the sleeps
	q, kicks := g.Tx[0], 0
	r.run(50)
	for i := uint64(0); kicks < 5 && i < 5000; i++ {
		r.awaitSleep()
		slept := r.sh.Counters.Sleeps
		before := q.Kicks
		q.Reclaim()
		if !q.Send(ethernet(0xa, 100, uint32(i))) {
			t.Fatal("no buffer")
		}
		q.Publish()
		await(t, "a frame", func() bool { return r.sh.Ports[1].RxPackets == i+1 })
		if q.Kicks > before && r.sh.Counters.Sleeps == slept {
			kicks++
		}
	}
	if kicks == 0 {
		t.Fatal("no frame was kicked for: the test is void")
	}
	var counter [8]byte
	if _, err := unix.Read(q.KickFD(), counter[:]); err != nil || binary.LittleEndian.Uint64(counter[:]) < uint64(kicks) {
		t.Errorf("the counter is %d after %d kicks: %v", binary.LittleEndian.Uint64(counter[:]), kicks, err)
	}
	if _, err := unix.Write(q.KickFD(), binary.LittleEndian.AppendUint64(nil, math.MaxUint64-1)); err != nil {
		t.Fatal(err)
	}
	r.awaitSleep()
	before := *r.sh.Counters
	time.Sleep(2 * maxSleepMS * time.Millisecond)
	now := *r.sh.Counters
	turns := (now.HeartbeatNS-before.HeartbeatNS)/(maxSleepMS*1_000_000) + 3
	if sleeps := now.Sleeps - before.Sleeps; sleeps > turns {
		t.Errorf("%d sleeps over a full event, expected about %d", sleeps, turns)
	}
}

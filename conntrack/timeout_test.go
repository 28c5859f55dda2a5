// SPDX-License-Identifier: Apache-2.0

package conntrack

import (
	"math/rand"
	"testing"

	"weft/packet"
)

// A connection never ends before its timeout (RFC 4787 REQ-5). It ends at most 1/128 of the timeout, and at
// most one second, later.
func TestTimeoutsAreNotEarly(t *testing.T) {
	r := newRig(t, 64)
	out, back := udpFrame(guest, server, 1), udpFrame(server, guest, 1)
	m, _ := r.send(out, commit)
	c := &r.tr.conns[m.Ref.Number]
	r.expect(back, look, Tracked|Established|Reply)
	written := c.expiresNS
	r.now += second * 9 / 10
	r.expect(out, look, Tracked|Established)
	if c.expiresNS != written {
		t.Error("the expiry is written though it has hardly moved")
	}
	if c.expired(r.now + 120*second - 1) {
		t.Error("the connection expired before its timeout")
	}

	rng := rand.New(rand.NewSource(1))
	for _, seconds := range []uint32{1, 7, 30, 120, 128, 129, 86400, MaxTimeout} {
		short := DefaultTimeouts
		short[udpMultiple] = seconds
		r.tr.SetPolicy(0, &short)
		timeout := uint64(seconds) * second
		most := min(timeout/128, second)
		for range 200 {
			r.now += uint64(rng.Int63n(int64(2*most) + 1))
			r.expect(out, look, Tracked|Established)
			if c.expired(r.now+timeout-1) || !c.expired(r.now+timeout+most) {
				t.Fatalf("timeout %d s: the expiry is wrong by %d ns", seconds, int64(c.expiresNS-r.now-timeout))
			}
			r.tr.Each(r.now, func(e *Entry) bool {
				if e.TimeoutS > seconds || e.TimeoutS+2 < seconds {
					t.Fatalf("timeout %d s: the displayed time is %d s", seconds, e.TimeoutS)
				}
				return true
			})
		}
		r.tr.Each(r.now+timeout+most/2, func(e *Entry) bool {
			if e.TimeoutS != 0 {
				t.Errorf("timeout %d s: the displayed time is %d s at its end", seconds, e.TimeoutS)
			}
			return true
		})
	}
}

// The expiry of a connection whose frame is in the set Settled.Quick need not be written: without the write,
// the connection still does not end before its timeout.
func TestQuickIsNotDue(t *testing.T) {
	r := newRig(t, 64)
	out, back := udpFrame(guest, server, 1), udpFrame(server, guest, 1)
	r.send(out, commit)
	hints := make([]Hints, 64)
	for _, seconds := range []uint32{120, 1, 0} {
		short := DefaultTimeouts
		short[udpMultiple] = seconds
		r.tr.SetPolicy(0, &short)
		timeout := uint64(seconds) * second
		moves := min(timeout/128, second)
		for late, quick := range map[uint64]bool{0: true, moves: true, moves + 1: false, timeout + moves: false} {
			r.now += 1000 * second
			r.send(out, commit)
			r.expect(back, look, Tracked|Established|Reply)
			r.put(out)
			order, _ := r.tr.SeekFlows(&r.b, 1, 1)
			ref, _, _ := r.tr.Settle(0)
			hints[ref.Number][0] = Hint{7, ref.Generation}
			var tags [packet.BatchSize]uint32
			got := r.tr.SettleAll(order, hints, &tags, 7, r.now+late)
			if quick = quick && seconds != 0; got.Hinted != 1 || got.Quick == 1 != quick {
				t.Errorf("timeout %d s, %d ns later: unexpected result %+v", seconds, late, got)
			}
			if quick && r.tr.conns[ref.Number].expired(r.now+late+timeout-1) {
				t.Errorf("timeout %d s, %d ns later: the connection expired early", seconds, late)
			}
		}
	}
}

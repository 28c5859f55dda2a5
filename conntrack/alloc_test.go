// SPDX-License-Identifier: Apache-2.0

//go:build !race

package conntrack

import (
	"encoding/binary"
	"testing"

	"weft/packet"
)

// Frames that pass a gateway (FTP, TFTP) allocate no memory.
func TestGatewayAllocatesNothing(t *testing.T) {
	for _, v := range []struct {
		client, server, outside, text string
		reply                         bool
	}{
		{"10.0.0.1:1000", "10.0.1.1:21", "", "PORT 10,0,0,1,19,137\r\n", false},
		{"10.0.0.1:1000", "10.0.1.1:21", "192.0.2.100", "PORT 10,0,0,1,19,137\r\n", false},
		{"10.0.0.1:1000", "10.0.1.1:21", "192.0.2.100", "EPRT |1|10.0.0.1|5001|\r\n", false},
		{"[fd00::1]:1000", "[fd01::1]:21", "2001:db8::9", "EPRT |2|fd00::1|5001|\r\n", false},
		{"10.0.0.1:1000", "10.0.1.1:21", "192.0.2.100", "227 Passive (10,0,1,1,19,137).\r\n", true},
		{"10.0.0.1:1000", "10.0.1.1:21", "192.0.2.100", "229 Extended (|||5001|)\r\n", true},
	} {
		r := newRig(t, 64)
		req := Request{Zone: 1, Commit: true, ALG: ALGFTP}
		if v.outside != "" {
			req.NAT = natTo(NATSrc, v.outside, v.outside).NAT
		}
		sender, to := v.client, v.server
		outside := r.control(v.client, v.server, v.server, req)
		frame := saying(sender, to, tcpAck, 101, 501, v.text)
		if v.reply {
			frame = saying(v.server, outside, tcpAck, 501, 101, v.text)
		}
		if n := testing.AllocsPerRun(20, func() {
			r.put(frame)
			r.tr.Process(&r.b, []uint8{0}, &r.metas, &back, r.now)
		}); n != 0 {
			t.Errorf("%q: %v allocations, want 0", v.text, n)
		}
		if m := &r.metas[0]; m.State&Invalid != 0 || m.Drop != packet.DropNone || r.tr.head.expecting.Load() == 0 {
			t.Errorf("%q: unexpected ct_state %s or drop reason %v", v.text, stateText(m.State), m.Drop)
		}
	}
}

// A connection that evicts another allocates no memory.
func TestEvictionAllocatesNothing(t *testing.T) {
	r := newRig(t, 64)
	for i := range 64 + victimsStart {
		r.begin(i, 1, false)
	}
	frame, next := udpFrame("10.9.0.1:1", server, 1), uint16(0)
	evicted := r.tr.Counters().Evicted
	const runs = 4 * victimsGroup
	if n := testing.AllocsPerRun(runs, func() {
		next++
		r.put(frame)
		binary.BigEndian.PutUint16(r.b.Frames[0].Header()[34:], next)
		r.tr.Process(&r.b, []uint8{0}, &r.metas, &commit, r.now)
	}); n != 0 {
		t.Errorf("%v allocations, want 0", n)
	}
	if n := r.tr.Counters().Evicted - evicted; n != runs+1 {
		t.Errorf("%d evictions, want %d", n, runs+1)
	}
}

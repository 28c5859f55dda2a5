// SPDX-License-Identifier: Apache-2.0

package hub

import "testing"

// A session whose host reads too slowly ends, and is counted once. Messages that the
// ended session does not take are not counted as delivered.
func TestSlowSessionIsCounted(t *testing.T) {
	h := new(Hub)
	stats := &h.stats
	s := &session{wake: make(chan struct{}, 1), hub: h}
	s.queue(make(rawMessage, maxQueue))
	s.queue(make(rawMessage, 1))
	s.queue(make(rawMessage, 1))
	if s.err != errSlow || stats.SlowSessions != 1 || stats.Delivered != 1 || stats.DeliveredBytes != maxQueue {
		t.Errorf("error %v, counters %+v", s.err, *stats)
	}
}

// SPDX-License-Identifier: Apache-2.0

package clock

import "testing"

func TestMonotonicIsTheKernelsClock(t *testing.T) {
	before := read()
	now := Monotonic()
	after := read()
	// slackNS is the tolerance: the two readings that relate the clocks at the start
	// are not simultaneous.
	const slackNS = 1e9
	if now+slackNS < before || now > after+slackNS {
		t.Errorf("%d, read between %d and %d", now, before, after)
	}
}

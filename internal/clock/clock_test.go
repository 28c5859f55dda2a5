// SPDX-License-Identifier: Apache-2.0

package clock

import "testing"

func TestMonotonicIsTheKernelsClock(t *testing.T) {
	before := read()
	now := Monotonic()
	after := read()
	// slackNS is the tolerance in nanoseconds. Package clock reads Go's clock and the
	// kernel's clock one after the other at the start, so their offset is not exact.
	const slackNS = 1e9
	if now+slackNS < before || now > after+slackNS {
		t.Errorf("%d, read between %d and %d", now, before, after)
	}
}

// SPDX-License-Identifier: Apache-2.0

package clock

import "testing"

func TestMonotonicIsTheKernelsClock(t *testing.T) {
	before := read()
	now := Monotonic()
	after := read()
	// slackNS is how far two clocks may differ in nanoseconds, because the test reads them one after
	// the other.
	const slackNS = 1e9
	if now+slackNS < before || now > after+slackNS {
		t.Errorf("%d, read between %d and %d", now, before, after)
	}
}

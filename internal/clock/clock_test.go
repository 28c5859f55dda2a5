package clock

import "testing"

func TestMonotonicIsTheKernelsClock(t *testing.T) {
	before := read()
	now := Monotonic()
	after := read()
	// The two readings that tie the clocks together at the start are not one instant.
	const slackNS = 1e9
	if now+slackNS < before || now > after+slackNS {
		t.Errorf("%d, read between %d and %d", now, before, after)
	}
}

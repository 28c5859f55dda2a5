// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"strings"
	"testing"
)

// MustPing sends count pings, and fails the test if any of them is not answered. Late
// answers count.
func MustPing(t testing.TB, from Guest, to string, count int, args ...string) {
	t.Helper()
	p, err := PingAll(from, to, count, args...)
	if err != nil {
		t.Fatal(err)
	}
	if p.Received != count {
		t.Errorf("%s to %s %s: %d of %d pings answered", from, to, strings.Join(args, " "), p.Received, count)
	}
}

// MustFlood runs iperf3 between two guests for a second. It fails the test if the rate
// in bit/s is below minRate.
func MustFlood(t testing.TB, minRate float64, from, to Guest, addr string, args ...string) {
	t.Helper()
	f, err := Iperf(from, to, addr, 1, args...)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("iperf3 %s to %s %s: %v", from, to, strings.Join(args, " "), f)
	if f.BitsPerSecond < minRate {
		t.Errorf("iperf3 %s to %s: next to nothing arrives", from, to)
	}
}

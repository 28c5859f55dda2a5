// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"strings"
	"testing"
	"time"
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

// floodLimit is how long MustFlood waits for its rate.
const floodLimit = 2 * time.Minute

// MustFlood runs iperf3 between two guests, a second each time, until it reaches minRate in
// bit/s. It fails the test after floodLimit: beside other work a second may pass in which
// next to nothing arrives.
func MustFlood(t testing.TB, minRate float64, from, to Guest, addr string, args ...string) {
	t.Helper()
	for end := time.Now().Add(floodLimit); ; {
		f, err := Iperf(from, to, addr, 1, args...)
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("iperf3 %s to %s %s: %v", from, to, strings.Join(args, " "), f)
		if f.BitsPerSecond >= minRate {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("iperf3 %s to %s: next to nothing arrives", from, to)
		}
	}
}

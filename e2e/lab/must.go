// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"strings"
	"testing"
	"time"
)

// MustPing sends "count" echo requests, and fails the test if one of them is not answered. Late
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

// floodLimit is the time within which MustFlood must reach its rate.
const floodLimit = 2 * time.Minute

// MustFlood runs iperf3 between two guests, for a second at a time, until it reaches minRate in
// bit/s. After floodLimit it fails the test. It repeats because on a busy machine next to
// nothing may arrive during a second.
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

// SPDX-License-Identifier: Apache-2.0

package conntrack

import (
	"testing"

	"weft/packet"
)

// One port uses every translation for connections to a server. Another port then begins connections. They
// evict connections of the first port, unanswered ones before answered ones, until the second port has
// about half of the translations. After that, new connections of both ports are refused.
func TestOthersGetTranslations(t *testing.T) {
	r := newRig(t, 1024)
	req := natTo(NATSrc, "192.0.2.1", "192.0.2.2", 5000, 5049)
	for i := range 100 {
		out := r.fromPort(1).expect(udpFrame("10.0.0.1:"+port(i+1), server, 8), req, Tracked|New|SNAT)
		if i >= 10 {
			outside := "192.0.2." + port(int(out[29])) + ":" + port(int(out[34])<<8|int(out[35]))
			r.expect(udpFrame(server, outside, 8), bare, Tracked|Established|Reply|DNAT)
		}
	}
	if m, _ := r.send(udpFrame("10.0.0.1:999", server, 8), req); m.Drop != packet.DropNATExhausted {
		t.Fatalf("the port with all translations: drop reason %v, want a refusal", m.Drop)
	}
	got := 0
	for i := range 100 {
		m, out := r.fromPort(2).send(udpFrame("10.0.0.2:"+port(i+1), server, 8), req)
		if m.Drop == packet.DropNone {
			outside := "192.0.2." + port(int(out[29])) + ":" + port(int(out[34])<<8|int(out[35]))
			r.expect(udpFrame(server, outside, 8), bare, Tracked|Established|Reply|DNAT)
			got++
		}
		unanswered := int(r.tr.holders[1].lists[listUnreplied].count)
		if want := max(10-got, 0); unanswered != want {
			t.Fatalf("%d unanswered connections of the first port left, want %d", unanswered, want)
		}
		check(t, r.tr.Table)
	}
	if got < 45 || got > 50 || r.tr.holders[1].evicted != uint64(got) || r.lives(1)+r.lives(2) != 100 {
		t.Errorf("the other port got %d of 100 connections; the first had %d evicted", got, r.tr.holders[1].evicted)
	}
}

// When a worker has spent too much time on long searches, its searches get only
// freeNATTries for some time.
func TestNATSearchesAreBounded(t *testing.T) {
	r := newRig(t, 1<<12)
	req := natTo(NATSrc, "192.0.2.1", "192.0.2.4", 5000, 5000+maxNATPorts-1)
	for i := range maxNATAddresses * maxNATPorts {
		r.now += second / 1000
		if m, _ := r.fromPort(1).send(udpFrame("10.0.0.1:"+port(i+1), server, 8), req); m.Drop != packet.DropNone {
			t.Fatal(m.Drop)
		}
	}
	tries := func(n int) (largest uint64) {
		for i := range n {
			before := r.tr.NATTries()
			r.fromPort(1).send(udpFrame("10.0.0.1:"+port(30000+i), server, 8), req)
			largest = max(largest, r.tr.NATTries()-before)
		}
		return largest
	}
	r.now += second
	if most := tries(1); most < maxNATPorts || most > maxNATAddresses*(maxNATPorts+1) {
		t.Errorf("unexpected number of tries for one frame: %d", most)
	}
	tries(100)
	if most := tries(100); most != 0 {
		t.Errorf("%d tries of a worker that owes too much time", most)
	}
	if m, _ := r.fromPort(2).send(udpFrame("10.0.0.2:1", server, 8), req); m.Drop != packet.DropNone {
		t.Errorf("the other port's connection was refused: %v", m.Drop)
	}
	r.now += natTimeShare * 2 * maxNATDebtNS
	if most := tries(1); most < maxNATPorts {
		t.Errorf("%d tries once the debt is paid", most)
	}
	check(t, r.tr.Table)
}

func BenchmarkNATExhausted(b *testing.B) {
	r := newRig(b, 1<<18)
	req := natTo(NATSrc, "192.0.2.1", "192.0.2.4", 1, 60000)
	for i := range 300_000 {
		h := [3]int{i >> 16, i >> 8 & 255, i & 255}
		r.send(udpFrame("10."+port(h[0])+"."+port(h[1])+"."+port(h[2])+":1", server, 8), req)
	}
	before := r.tr.NATTries()
	b.ResetTimer()
	for range b.N {
		r.now += second
		r.send(udpFrame("10.9.9.9:9", server, 8), req)
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(max(r.tr.NATTries()-before, 1)), "ns/try")
}

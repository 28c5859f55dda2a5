// SPDX-License-Identifier: Apache-2.0

package fdb

import (
	"fmt"
	"net/netip"
	"testing"
	"time"
)

// Invented addresses on one port or remote endpoint do not displace addresses of other
// ports and endpoints. The table learns the invented addresses at a bounded rate.
func TestInventedAddressesPushOutTheirOwn(t *testing.T) {
	const limit = 4096
	tab := New(limit, 0)
	now := uint64(time.Hour)
	learn := func(port uint32, remote string, mac uint64) {
		l := Learn{Valid: true, Segment: 5, Port: port, MAC: mac}
		if remote != "" {
			l.Remote = netip.MustParseAddr(remote)
		}
		tab.Learn(l, now)
	}
	const victims = 16
	for i := range uint64(victims) {
		learn(1, "", i)
		learn(8, "192.0.2.1", 100+i)
	}
	present := func(moment string) {
		t.Helper()
		for i := range uint64(victims) {
			for _, mac := range []uint64{i, 100 + i} {
				if _, ok := tab.Locate(5, 0, mac); !ok {
					t.Fatalf("%s: address %d was displaced", moment, mac)
				}
			}
		}
	}
	for i := range uint64(400_000) {
		now += uint64(time.Second) / 100_000
		learn(2, "", 1<<20+i)
		learn(3, "", 2<<20+i)
		learn(8, "192.0.2.2", 3<<20+i)
	}
	present("under attack")
	if tab.Len() != limit {
		t.Errorf("a full table has %d addresses, want %d", tab.Len(), limit)
	}
	for _, s := range tab.Shares() {
		if s.Used > tab.PortLimit() {
			t.Errorf("port %d has %d addresses, want at most %d", s.Port, s.Used, tab.PortLimit())
		}
		// In 4 s a port learns at most 4*learnRate + learnBurst addresses; the fifth
		// learnRate is tolerance.
		if want := 400_000 - 5*learnRate - learnBurst; s.Port != 1 && s.Refused.Rate < uint64(want) {
			t.Errorf("port %d was refused %d addresses, want %d", s.Port, s.Refused.Rate, want)
		}
	}
	learn(4, "", 777)
	learn(8, "192.0.2.3", 778)
	for _, mac := range []uint64{777, 778} {
		if _, ok := tab.Locate(5, 0, mac); !ok {
			t.Errorf("a bystander's new address %d is not learned", mac)
		}
	}
	if tab.Forget(2); tab.Shares()[1].Port == 2 {
		t.Error("a forgotten port is still in Shares")
	}
}

// Frames from many invented remotes take only bounded memory.
func TestInventedRemotesAreOne(t *testing.T) {
	tab := New(0, 0)
	for i := range 10_000 {
		tab.Learn(Learn{Valid: true, Port: 8, MAC: uint64(i), Remote: netip.MustParseAddr(fmt.Sprintf("10.0.%d.%d", i/256, i%256))}, uint64(i)*uint64(time.Millisecond))
	}
	p := tab.ports[8]
	if len(p.holders) > maxMACHolders+1 || p.count != tab.Len() || tab.Len() == 0 {
		t.Errorf("the port has lists of %d remotes and %d addresses; the table has %d addresses", len(p.holders), p.count, tab.Len())
	}
	if n := tab.Flush(8); n == 0 || tab.Len() != 0 {
		t.Errorf("Flush removed %d addresses and left %d", n, tab.Len())
	}
}

// The table of announced IP addresses has the same quotas as the MAC table.
func TestInventedNeighboursPushOutTheirOwn(t *testing.T) {
	n := newNeighbours(64, new(Changes))
	ip := func(i int) neighbourKey {
		return neighbourKey{ip: netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)})}
	}
	for i := range 10 {
		n.learn(ip(i), 1, 1, 0, 100)
	}
	for i := range 10_000 {
		n.learn(ip(1000+i), 2, 2, 1, 100)
		n.learn(ip(100_000+i), 3, 3, 1, 100)
	}
	for i := range 10 {
		if mac, ok := n.find(ip(i)); !ok || mac != 1 {
			t.Errorf("the announcement of IP address %d is gone or changed: known %v", i, ok)
		}
	}
	if len(n.entries) != 64 {
		t.Errorf("unexpected number of entries: %d", len(n.entries))
	}
}

// SPDX-License-Identifier: Apache-2.0

package fdb

import (
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
)

// TestSegmentTable compares the table of addresses with a list.
func TestSegmentTable(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	tab := New(1000, 0)
	type row struct {
		s    Segment
		vlan uint16
		mac  uint64
		port uint32
	}
	var rows []row
	for step := range uint64(5000) {
		now := step * uint64(vniQuiet) // steps of vniQuiet, the time after which an address may move to another VNI
		r := row{Segment(rng.IntN(3)), uint16(rng.IntN(2)), uint64(rng.IntN(6)), uint32(rng.IntN(9))}
		if rng.IntN(20) == 0 {
			tab.Flush(r.port)
			rows = slices.DeleteFunc(rows, func(o row) bool { return o.port == r.port })
		} else {
			tab.Learn(Learn{Valid: true, Segment: r.s, VLAN: r.vlan, MAC: r.mac, Port: r.port}, now)
			same := func(o row) bool { return o.vlan == r.vlan && o.mac == r.mac && o.s == r.s }
			if at := slices.IndexFunc(rows, same); at >= 0 {
				rows[at] = r
			} else {
				rows = append(rows, r)
			}
			rows = slices.DeleteFunc(rows, func(o row) bool {
				return o.vlan == r.vlan && o.mac == r.mac && !same(o) && (o.s == 0 || r.s == 0)
			})
		}
		var own, none, any []row
		for _, o := range rows {
			if o.vlan != r.vlan || o.mac != r.mac {
				continue
			}
			any = append(any, o)
			if o.s == r.s {
				own = append(own, o)
			}
			if o.s == 0 {
				none = append(none, o)
			}
		}
		want := append(own, none...)
		if r.s == 0 {
			want = any // the first entry: known longest
		}
		port, ok := tab.Locate(r.s, r.vlan, r.mac)
		if ok != (len(want) > 0) || ok && port != want[0].port || tab.Len() != len(rows) || len(tab.Entries()) != len(rows) {
			t.Fatalf("step %d: %+v is at port %d, %v; want %+v; %d addresses, %d in the slow table", step, r, port, ok, want, tab.Len(), len(rows))
		}
	}
}

// After an address has moved, the table does not learn from a frame that arrived before
// the move.
func TestMovesAreLearnedInOrder(t *testing.T) {
	tab := New(0, 0)
	at := func(port uint32, s Segment) Learn { return Learn{Valid: true, Segment: s, MAC: 1, Port: port} }
	tab.Learn(at(1, 5), 10)
	tab.Learn(at(2, 5), 20)
	old, now := at(1, 5), at(2, 5)
	if port, _ := tab.Locate(5, 0, 1); tab.Learn(old, 15) || port != 2 || !tab.Moved(&old) || tab.Moved(&now) {
		t.Errorf("after an older sighting the address is at port %d", port)
	}
	if port, _ := tab.Locate(5, 0, 1); !tab.Learn(old, 30) || port != 2 {
		t.Error("a later move back was not learned")
	}
	if tab.Learn(at(3, 0), 40) || tab.Shares()[2].Refused.OtherVNI != 1 {
		t.Error("a port without a VNI took an address that is alive in a VNI")
	}
	later := 30 + uint64(vniQuiet)
	tab.Learn(at(3, 0), later)
	if old.Port = 1; !tab.Moved(&old) || tab.Learn(old, later-1) {
		t.Error("an older sighting was learned after the move to a port without a VNI")
	}
}

// Invented addresses in one VNI do not displace addresses of another VNI.
func TestSegmentsShareTheTable(t *testing.T) {
	tab := New(100, 0)
	for mac := range uint64(40) {
		tab.Learn(Learn{Valid: true, Segment: 1, MAC: mac, Port: 1}, 0)
	}
	for mac := range uint64(1000) {
		tab.Learn(Learn{Valid: true, Segment: 2, MAC: mac, Port: 2}, 1+mac)
	}
	if _, ok := tab.Locate(1, 0, 0); !ok || tab.Len() != 90 {
		t.Errorf("the first address of the other VNI is known: %v; %d addresses", ok, tab.Len())
	}
	if tab.Learn(Learn{Valid: true, Segment: 3, MAC: 1, Port: 3}, 2000); tab.Len() != 91 {
		t.Errorf("unexpected number of addresses: %d", tab.Len())
	}
	if _, ok := tab.Locate(3, 0, 1); !ok {
		t.Error("a VNI's first address was refused")
	}
}

// When a host no longer announces its IP address, the announcement expires, and
// megaflows with a local answer are translated again.
func TestWhatHostsSaidExpires(t *testing.T) {
	tab := New(0, 0)
	host, ip := Learn{Valid: true, Segment: 1, MAC: 0xb, Port: 41}, netip.MustParseAddr("10.0.0.2")
	said := host
	said.IP = ip
	tab.Learn(said, 1)
	tab.Learn(host, uint64(DefaultAge))
	was := tab.Generation()
	if n := tab.Expire(uint64(DefaultAge) + 1); n != 1 || tab.Generation() == was || tab.Len() != 1 {
		t.Errorf("%d expired, %d addresses left; the generation has changed: %v", n, tab.Len(), tab.Generation() != was)
	}
	if mac, ok := tab.Neighbour(1, 0, ip); ok {
		t.Errorf("the announcement of %v did not expire: %x", ip, mac)
	}
}

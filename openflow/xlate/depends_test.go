// SPDX-License-Identifier: Apache-2.0

package xlate

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"reflect"
	"slices"
	"testing"
	"time"

	"weft/flowtable"
	"weft/openflow"
	"weft/openflow/fdb"
	"weft/openflow/openflowtest"
)

// meet reports whether a translation depends on one of the changed addresses.
func meet(c *fdb.Changes, t *Translation) bool {
	if c.All() {
		return len(t.Addresses) > 0
	}
	found := false
	c.Each(func(ref fdb.Ref) { found = found || slices.Contains(t.Addresses, ref) })
	return found
}

// changeTable makes a random change of a table and returns its description.
func changeTable(r *rand.Rand, tab *fdb.Table, now uint64) string {
	port := openflowtest.Pick[uint32](r, 1, 2, 3, 4, 5, 6, 9)
	switch r.IntN(12) {
	case 0:
		tab.Flush(port)
		return fmt.Sprintf("flush of port %d", port)
	case 1:
		tab.Expire(now)
		return "expiry"
	case 2:
		tab.Change(&fdb.Change{Networks: map[fdb.Segment]*fdb.Network{
			fdb.SegmentOf(1): {Flood: r.IntN(2) == 0, Members: []netip.Addr{underlayIP(r.IntN(9))}}}})
		return "settings of a network"
	case 3, 4, 5:
		a := fdb.NetAddress{Segment: fdb.SegmentOf(1 + uint32(r.IntN(2))), MAC: uint64(1 + r.IntN(5)), Generation: int64(now) - int64(r.IntN(5)), Place: fdb.Place{Port: port}}
		if r.IntN(2) == 0 {
			a.Place = fdb.Place{Remote: underlayIP(r.IntN(3))}
		}
		for range r.IntN(3) {
			a.IPs = append(a.IPs, hostIP(r.IntN(4)))
		}
		tab.Change(&fdb.Change{Addresses: []fdb.NetAddress{a}})
		return fmt.Sprintf("declaration %+v", a)
	case 6:
		tab.Change(&fdb.Change{Removed: []fdb.RemovedNetAddress{{Segment: fdb.SegmentOf(1), MAC: uint64(1 + r.IntN(5)), Generation: int64(now)}}})
		return "a removal"
	}
	l := fdb.Learn{Valid: true, Segment: fdb.Segment(r.IntN(4)), VLAN: uint16(r.IntN(2)), Port: port, MAC: uint64(1 + r.IntN(5)), Announced: r.IntN(2) == 0}
	if r.IntN(2) == 0 {
		l.IP = hostIP(r.IntN(4))
	}
	tab.Learn(l, now)
	return fmt.Sprintf("%+v", l)
}

// TestTranslationsNoteTheirAddresses changes random addresses. If such a change alters a key's
// translation, the earlier translation must have named one of these addresses.
func TestTranslationsNoteTheirAddresses(t *testing.T) {
	seeds := uint64(30)
	if testing.Short() {
		seeds = 6
	}
	for seed := range seeds {
		r := rand.New(rand.NewPCG(seed, 9))
		p, env := centralPipeline(t), networkEnvOf(8, true)
		all, err := openflow.ParseFlowMod("in_port=6,actions=normal", openflow.Add, nil)
		if err != nil {
			t.Fatal(err)
		}
		operators, _ := openflow.ParseFlowMod("in_port=5,actions=normal", openflow.Add, nil)
		if _, err := p.Apply([]openflow.FlowMod{all, operators}, 0); err != nil {
			t.Fatal(err)
		}
		var keys []flowtable.Key
		for range 60 {
			keys = append(keys, randomNetworkKey(t, r))
		}
		now := uint64(1)
		for range 60 {
			var before []Translation
			for i := range keys {
				before = append(before, Translate(p, &keys[i], env))
			}
			env.macs.TakeChanges()
			now += uint64(r.IntN(3)) * uint64(30*time.Second) // vniQuiet of the table
			what := changeTable(r, env.macs, now)
			changes := env.macs.TakeChanges()
			for i := range keys {
				after := Translate(p, &keys[i], env)
				if !reflect.DeepEqual(before[i], after) && !meet(&changes, &before[i]) {
					t.Fatalf("seed %d: %s changes %x from\n%+v to\n%+v\nwhich depends on no changed address of %v", seed, what, keys[i], before[i], after, changes)
				}
			}
		}
	}
}

func randomNetworkKey(t *testing.T, r *rand.Rand) flowtable.Key {
	in := openflowtest.Pick[uint32](r, 1, 2, 3, 5, 6, 9)
	text := fmt.Sprintf("in_port=%d,tun_id=%d,tun_src=192.0.2.%d,dl_src=00:00:00:00:00:0%d", in, 1+r.IntN(2), r.IntN(3), 1+r.IntN(5))
	if r.IntN(4) == 0 {
		text += ",dl_vlan=1"
	}
	if r.IntN(3) == 0 {
		text += fmt.Sprintf(",dl_dst=ff:ff:ff:ff:ff:ff,arp,arp_op=1,arp_spa=10.0.0.7,arp_tpa=10.0.0.%d", r.IntN(4))
	} else {
		text += fmt.Sprintf(",dl_dst=00:00:00:00:00:0%d", 1+r.IntN(6))
	}
	return keyOfText(t, text)
}

// A translation with more than maxAddressRefs addresses counts as dependent on every address.
func TestAddressRefsAreBounded(t *testing.T) {
	x := new(xlate)
	for i := range uint64(maxAddressRefs + 5) {
		x.depends(fdb.RefOfMAC(i / 2 * 2)) // every second one twice
		x.depends(fdb.RefOfMAC(i))
	}
	if !slices.Equal(x.addresses, []fdb.Ref{fdb.AnyRef}) {
		t.Errorf("%v", x.addresses)
	}
}

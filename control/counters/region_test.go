// SPDX-License-Identifier: Apache-2.0

package counters

import (
	"math/rand"
	"testing"

	"golang.org/x/sys/unix"

	"weft/datapath"
	"weft/flowtable"
	"weft/internal/shm"
	"weft/packet"
	"weft/port"
)

func testCounters(t *testing.T) *Region {
	t.Helper()
	c, err := New(64)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.region.Close() })
	return c
}

// Credit gives the same sums as a map, for random rules with duplicates.
func TestCreditAgainstSums(t *testing.T) {
	c := testCounters(t)
	rng := rand.New(rand.NewSource(1))
	type sums struct{ packets, bytes uint64 }
	rules, slots := map[uint32]sums{}, map[uint32]sums{}
	for range 500 {
		var list []uint32
		for range rng.Intn(2 * maxJournal) {
			list = append(list, uint32(rng.Intn(2000)))
		}
		slot := uint32(rng.Intn(64))
		if slot == 0 {
			slot = flowtable.NoSlot
		}
		packets, bytes := uint64(rng.Intn(100)), uint64(rng.Intn(10000))
		c.Credit(slot, list, packets, bytes, 1)
		for _, r := range list {
			rules[r] = sums{rules[r].packets + packets, rules[r].bytes + bytes}
		}
		slots[slot] = sums{slots[slot].packets + packets, slots[slot].bytes + bytes}
	}
	for r, want := range rules {
		if got := (sums{c.Rules[r].Packets, c.Rules[r].Bytes}); got != want {
			t.Fatalf("rule %d: %v, want %v", r, got, want)
		}
	}
	delete(slots, flowtable.NoSlot)
	for s, want := range slots {
		if got := (sums{c.Slots[s].Packets, c.Slots[s].Bytes}); got != want {
			t.Fatalf("slot %d: %v, want %v", s, got, want)
		}
	}
}

// If control dies while it adds a megaflow's frames to the counters of rules, the frames count
// exactly once.
func TestCreditInterrupted(t *testing.T) {
	c := testCounters(t)
	c.Begin(3, 1, []uint32{7, 8})
	c.Credit(3, []uint32{7, 8}, 10, 1000, 5)

	j := c.journal
	j.Slot, j.Packets, j.Bytes, j.Count = 3, 11, 1100, 2
	j.Entries[0] = journalEntry{Rule: 7, Packets: 11, Bytes: 1100, UsedNS: 6}
	j.Entries[1] = journalEntry{Rule: 8, Packets: 11, Bytes: 1100, UsedNS: 6}
	j.State.Store(1)
	c.Rules[7] = Rule{Packets: 11, Bytes: 1100, UsedNS: 6} // the state at which control died

	fd, err := unix.Dup(c.region.FD())
	if err != nil {
		t.Fatal(err)
	}
	next, err := Open(fd, 64)
	if err != nil {
		t.Fatal(err)
	}
	defer next.region.Close()
	for _, r := range []uint32{7, 8} {
		if got := next.Rules[r]; got.Packets != 11 || got.Bytes != 1100 || got.UsedNS != 6 {
			t.Errorf("rule %d: %+v", r, got)
		}
	}
	if s := next.Slots[3]; s.Packets != 11 || s.Bytes != 1100 || s.RuleCount != 2 || s.Rules[1] != 8 {
		t.Errorf("slot 3: %+v", s)
	}
}

// A change of the setting for megaflows keeps the counts of rules and ports.
func TestOpenCopiesForOtherSettings(t *testing.T) {
	c := testCounters(t)
	c.Begin(40, 1, []uint32{3})
	c.Credit(40, []uint32{3}, 5, 500, 1)
	c.Ports[7].TxPackets = 6
	for _, megaflows := range []int{32, 1 << 16} {
		fd, err := unix.Dup(c.region.FD())
		if err != nil {
			t.Fatal(err)
		}
		next, err := Open(fd, megaflows)
		if err != nil {
			t.Fatal(err)
		}
		if next.Rules[3].Packets != 5 || next.Ports[7].TxPackets != 6 || len(next.Slots) != megaflows || next.UsedSlots() != uint32(min(41, megaflows)) {
			t.Errorf("%d megaflows: %+v, %d slots, %d used", megaflows, next.Rules[3], len(next.Slots), next.UsedSlots())
		}
		next.region.Close()
	}
}

// A region that is too short, or whose header has a random number, is refused.
func TestOpenRefusesOtherLayouts(t *testing.T) {
	for _, size := range []int{8, 1 << 16} {
		region, err := shm.Create("other", size)
		if err != nil {
			t.Fatal(err)
		}
		shm.View[uint64](region.Bytes(), 0, size/8)[min(3, size/8-1)] = 1 << 63
		if _, err := Open(region.FD(), 64); err == nil {
			t.Errorf("opened a region of %d bytes", size)
		}
	}
}

// oldRegion makes a region as a build with other drop reasons makes it. In version 1, ports
// count failed outputs without reasons. Port 7 has sent 5 frames, dropped 1 received frame for
// each reason, and failed to send 9.
func oldRegion(t *testing.T, version uint64, reasons int) (fd int) {
	t.Helper()
	var l shm.Layout
	carveRules(&l, 64)
	stride := 4 + reasons + 1
	if version > 1 {
		stride += reasons
	}
	offset := l.Off
	shm.Carve[uint64](&l, port.MaxPorts*stride)
	region, err := shm.Create("old", l.Off)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { region.Close() })
	c := carveRules(&shm.Layout{Mem: region.Bytes()}, 64)
	*c.header = header{Magic: magic, Version: version, Rules: MaxRows, Megaflows: 64, Slots: 4}
	if version > 1 {
		c.header.Reasons, c.header.WorkerWords = uint64(reasons), 1
	}
	c.Rules[3].Packets, c.Slots[2].Bytes = 11, 12
	words := shm.Carve[uint64](&shm.Layout{Mem: region.Bytes(), Off: offset}, port.MaxPorts*stride)[7*stride:]
	words[2] = 5
	for i := range reasons {
		words[4+i] = 1
	}
	words[4+reasons] = 9
	if version > 1 {
		words[4+reasons+1+int(packet.DropTxFull)] = 9
	}
	if fd, err = unix.Dup(region.FD()); err != nil {
		t.Fatal(err)
	}
	return fd
}

// Rules and ports keep their counts if control is upgraded.
func TestOpenCopiesEarlierLayouts(t *testing.T) {
	for _, old := range []struct {
		version uint64
		reasons int
		full    uint64 // counted as tx-full
	}{{1, reasonsV1, 0}, {2, packet.DropReasons - 3, 9}, {2, packet.DropReasons + 2, 9}} {
		c, err := Open(oldRegion(t, old.version, old.reasons), 64)
		if err != nil {
			t.Fatalf("%+v: %v", old, err)
		}
		p := &c.Ports[7]
		if c.Rules[3].Packets != 11 || c.Slots[2].Bytes != 12 || c.UsedSlots() != 4 || p.TxPackets != 5 ||
			p.RxDrops[1] != 1 || p.TxDrops != 9 || p.TxReasons[packet.DropTxFull] != old.full {
			t.Errorf("%+v: port %+v", old, p)
		}
		if last := p.RxDrops[packet.DropReasons-1]; (last == 1) != (old.reasons >= packet.DropReasons) {
			t.Errorf("%+v: %d drops for the newest reason", old, last)
		}
		if c, err := Open(oldRegion(t, old.version, old.reasons), 32); err != nil || c.Ports[7].TxPackets != 5 || c.UsedSlots() != 4 {
			t.Errorf("%+v: for another number of megaflows: %v", old, err)
		}
		c.region.Close()
	}
	if _, err := Open(oldRegion(t, version+1, packet.DropReasons), 64); err == nil {
		t.Error("opened a later version")
	}
}

// Fold counts the frames that a dead engine held, by input port and by worker.
func TestFoldCountsHeldFrames(t *testing.T) {
	c := testCounters(t)
	sh := &datapath.Shared{Counters: &datapath.Counters{}, Ports: make([]datapath.PortCounters, 4), Held: make([]datapath.HeldFrame, 8)}
	sh.Ports[3].RxDrops[packet.DropHeldLost] = 5
	for slot, port := range map[int]uint32{1: 3, 2: 2, 7: 3} {
		sh.Held[slot] = datapath.HeldFrame{State: datapath.HeldWaiting, InPort: port}
	}
	c.Fold([]*datapath.Shared{sh})
	if a, b, w := c.Ports[3].RxDrops[packet.DropHeldLost], c.Ports[2].RxDrops[packet.DropHeldLost], c.Workers[0].Drops[packet.DropHeldLost]; a != 7 || b != 1 || w != 3 {
		t.Errorf("ports %d and %d, worker %d frames held-lost; want 7, 1 and 3", a, b, w)
	}
}

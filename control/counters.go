package control

import (
	"fmt"
	"sync/atomic"

	"weft/control/underlay"
	"weft/datapath"
	"weft/flowtable"
	"weft/internal/shm"
	"weft/port"
)

// The counter region is control's own memory, which the engine keeps under
// keepCounters while control is away: what rules have counted, how much of each
// megaflow's statistics has been credited to them, and what engines that are
// dead had counted. So a control process that is killed takes nothing with it.
//
// A credit touches several counts; a journal of the values that they are to
// have makes it one step: whoever opens the region next finishes what was begun.
const (
	countersMagic   = 0x7765_6674_6374_7273 // "weftctrs"
	countersVersion = 1
	keepCounters    = "counters"

	// maxRules is the number of flows.
	maxRules = 1 << 20
	// maxPlaces is the number of rule slots in the region: one change may replace all
	// flows, and those that go keep theirs until no megaflow counts for them.
	maxPlaces = 2 * maxRules
	// maxJournal is the number of rules that one credit changes in one step;
	// translations that touch more are credited in several.
	maxJournal = 512
	// slotRules is the number of rules noted with a megaflow slot. A megaflow of
	// more, removed and not yet credited when control dies, loses what it
	// counted since the last second.
	slotRules = 9
)

type countersHeader struct {
	Magic, Version   uint64
	Rules, Megaflows uint64
	// Slots is above every megaflow slot that was ever used, so that the next
	// control process need not touch the memory of the others.
	Slots uint64
}

// ruleCounts are the statistics of one rule, ruleSlot its index.
type ruleCounts struct {
	Packets, Bytes        uint64
	CreatedNS, ModifiedNS uint64 // CLOCK_MONOTONIC
	UsedNS                uint64 // CLOCK_MONOTONIC, 0: never
	// IdleTimeout and HardTimeout are the rule's in seconds, which fin_timeout may
	// have shortened; 0: as in its text.
	IdleTimeout, HardTimeout uint16
	_                        [20]byte
}

// slotCounts say how much of a megaflow's statistics, summed over the workers,
// has been credited, and to which rule slots.
type slotCounts struct {
	Packets, Bytes uint64
	RuleCount      uint32 // 0: nothing to credit; above slotRules: not all are noted
	// Generation is flowtable.Flow.Generation while this use of the slot is
	// installed, in every worker. Statistics under another are not its own.
	Generation uint32
	Rules      [slotRules]uint32
	_          [4]byte
}

type journal struct {
	State          atomic.Uint64 // 1: what follows is whole and to be carried out
	Slot           uint64        // flowtable.NoSlot: none
	Packets, Bytes uint64        // of the slot
	Count          uint64
	Entries        [maxJournal]journalEntry
}

type journalEntry struct {
	Rule                   uint64
	Packets, Bytes, UsedNS uint64
}

// counters is the region, laid out. Guarded by Daemon.mu, held alone.
type counters struct {
	region  *shm.Region
	header  *countersHeader
	journal *journal
	rules   []ruleCounts
	slots   []slotCounts
	// ports and workers hold what dead engines counted; unsigned arithmetic
	// wraps, so that a port's counts start at 0 when its number is used again.
	ports   []datapath.PortCounters
	workers []datapath.Counters // index: worker
	tunnels []underlay.Record   // index: template
}

func carveCounters(l *shm.Layout, megaflows int) *counters {
	c := &counters{}
	header := shm.Carve[countersHeader](l, 1)
	j := shm.Carve[journal](l, 1)
	c.rules = shm.Carve[ruleCounts](l, maxPlaces)
	c.slots = shm.Carve[slotCounts](l, megaflows)
	c.ports = shm.Carve[datapath.PortCounters](l, port.MaxPorts)
	c.workers = shm.Carve[datapath.Counters](l, maxWorkers)
	c.tunnels = shm.Carve[underlay.Record](l, underlay.MaxTemplates)
	if l.Mem != nil {
		c.header, c.journal = &header[0], &j[0]
	}
	return c
}

// newCounters makes an empty region for caches of that many megaflow slots.
func newCounters(megaflows int) (*counters, error) {
	var l shm.Layout
	carveCounters(&l, megaflows)
	region, err := shm.Create("counters", l.Off)
	if err != nil {
		return nil, err
	}
	c := carveCounters(&shm.Layout{Mem: region.Bytes()}, megaflows)
	c.region = region
	*c.header = countersHeader{Magic: countersMagic, Version: countersVersion, Rules: maxPlaces, Megaflows: uint64(megaflows)}
	return c, nil
}

// openCounters opens a region that an earlier control process made, and
// finishes the credit in the middle of which it died. It owns fd.
func openCounters(fd, megaflows int) (*counters, error) {
	region, err := shm.Open(fd)
	if err != nil {
		return nil, err
	}
	var l shm.Layout
	carveCounters(&l, megaflows)
	if len(region.Bytes()) < l.Off {
		region.Close()
		return nil, fmt.Errorf("counter region of %d bytes, %d needed", len(region.Bytes()), l.Off)
	}
	c := carveCounters(&shm.Layout{Mem: region.Bytes()}, megaflows)
	c.region = region
	want := countersHeader{Magic: countersMagic, Version: countersVersion, Rules: maxPlaces, Megaflows: uint64(megaflows)}
	want.Slots = min(c.header.Slots, want.Megaflows)
	if *c.header != want {
		region.Close()
		return nil, fmt.Errorf("counter region of another layout")
	}
	c.replay()
	return c, nil
}

// replay carries out the journal, if it is whole. Doing so twice is harmless.
func (c *counters) replay() {
	j := c.journal
	if j.State.Load() != 1 {
		return
	}
	if j.Slot < uint64(len(c.slots)) {
		c.slots[j.Slot].Packets, c.slots[j.Slot].Bytes = j.Packets, j.Bytes
	}
	for _, e := range j.Entries[:min(j.Count, maxJournal)] {
		if e.Rule < maxPlaces {
			r := &c.rules[e.Rule]
			r.Packets, r.Bytes, r.UsedNS = e.Packets, e.Bytes, e.UsedNS
		}
	}
	j.State.Store(0)
}

// credit adds packets and bytes to each of rules (slots; as often as they are
// listed) and, with slot not flowtable.NoSlot, to what megaflow slot has been
// credited for. usedNS is the time of the last of them.
func (c *counters) credit(slot uint32, rules []uint32, packets, bytes, usedNS uint64) {
	j := c.journal
	j.Slot = uint64(flowtable.NoSlot)
	if slot != flowtable.NoSlot {
		s := &c.slots[slot]
		j.Slot, j.Packets, j.Bytes = uint64(slot), s.Packets+packets, s.Bytes+bytes
	}
	j.Count = 0
	for _, r := range rules {
		c.enter(r, packets, bytes, usedNS)
	}
	c.commit()
}

// enter adds one rule's part to the journal, to its entry if it has one.
func (c *counters) enter(rule uint32, packets, bytes, usedNS uint64) {
	j := c.journal
	for i := range j.Entries[:j.Count] {
		if e := &j.Entries[i]; e.Rule == uint64(rule) {
			e.Packets += packets
			e.Bytes += bytes
			return
		}
	}
	if j.Count == maxJournal {
		c.commit()
		j.Count, j.Slot = 0, uint64(flowtable.NoSlot)
	}
	r := &c.rules[rule]
	j.Entries[j.Count] = journalEntry{
		Rule: uint64(rule), Packets: r.Packets + packets, Bytes: r.Bytes + bytes, UsedNS: max(r.UsedNS, usedNS),
	}
	j.Count++
}

func (c *counters) commit() {
	c.journal.State.Store(1)
	c.replay()
}

// begin notes that slot's statistics start at 0 and count for rules, once it is
// installed under generation. It must not be in any worker yet.
func (c *counters) begin(slot, generation uint32, rules []uint32) {
	s := &c.slots[slot]
	atomic.StoreUint32(&s.RuleCount, 0)
	s.Packets, s.Bytes, s.Generation = 0, 0, generation
	c.header.Slots = max(c.header.Slots, uint64(slot)+1)
	c.assign(slot, rules)
}

// assign notes the rules that slot counts for from now on. All that it has
// counted must have been credited.
func (c *counters) assign(slot uint32, rules []uint32) {
	s := &c.slots[slot]
	copy(s.Rules[:], rules)
	atomic.StoreUint32(&s.RuleCount, uint32(len(rules)))
}

// end notes that slot is free.
func (c *counters) end(slot uint32) { atomic.StoreUint32(&c.slots[slot].RuleCount, 0) }

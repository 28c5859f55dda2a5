// Package counters is the memory in which control keeps what was counted: by rules, by
// engines that are dead, and how much of each megaflow's statistics has been credited
// to rules. The engine keeps the memory while control is away, so that a control
// process that is killed takes nothing with it.
//
// A credit changes several counts. A journal of their next values makes it one step:
// the process that opens the region next finishes a credit that was begun.
//
// A Region has no lock of its own: it is guarded by the pipeline's lock, held for
// writing, and its rows of tunnels by the lock of the underlay's templates.
package counters

import (
	"fmt"
	"sync/atomic"

	"weft/control/underlay"
	"weft/control/workers"
	"weft/datapath"
	"weft/flowtable"
	"weft/internal/shm"
	"weft/port"
)

const (
	magic   = 0x7765_6674_6374_7273 // "weftctrs"
	version = 1

	// MaxRules is the number of flows.
	MaxRules = 1 << 20
	// MaxPlaces is the number of rule slots in the region: one change may replace all
	// flows, and those that go keep theirs until no megaflow counts for them.
	MaxPlaces = 2 * MaxRules
	// maxJournal is the number of rules that one credit changes in one step;
	// translations that touch more are credited in several.
	maxJournal = 512
	// SlotRules is the number of rules noted with a megaflow slot. A megaflow of
	// more, removed and not yet credited when control dies, loses what it
	// counted since the last second.
	SlotRules = 9
)

type header struct {
	Magic, Version   uint64
	Rules, Megaflows uint64
	// Slots is above every megaflow slot that was ever used, so that the next
	// control process need not touch the memory of the others.
	Slots uint64
}

// Rule has the statistics of one rule; its index is the rule's place.
type Rule struct {
	Packets, Bytes        uint64
	CreatedNS, ModifiedNS uint64 // CLOCK_MONOTONIC
	UsedNS                uint64 // CLOCK_MONOTONIC, 0: never
	// IdleTimeout and HardTimeout are the rule's in seconds, which fin_timeout may
	// have shortened; 0: as in its text.
	IdleTimeout, HardTimeout uint16
	_                        [20]byte
}

// Slot says how much of a megaflow's statistics, summed over the workers, has been
// credited, and to which places.
type Slot struct {
	Packets, Bytes uint64
	RuleCount      uint32 // 0: nothing to credit; above slotRules: not all are noted
	// Generation is flowtable.Flow.Generation while this use of the slot is
	// installed, in every worker. Statistics under another are not its own.
	Generation uint32
	Rules      [SlotRules]uint32
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

// Region is the region, laid out. See the package's comment for its locks.
type Region struct {
	region  *shm.Region
	header  *header
	journal *journal
	Rules   []Rule
	Slots   []Slot
	// Ports and workers hold what dead engines counted; unsigned arithmetic
	// wraps, so that a port's counts start at 0 when its number is used again.
	Ports   []datapath.PortCounters
	Workers []datapath.Counters // index: worker
	Tunnels []underlay.Record   // index: template
}

func carve(l *shm.Layout, megaflows int) *Region {
	c := &Region{}
	header := shm.Carve[header](l, 1)
	j := shm.Carve[journal](l, 1)
	c.Rules = shm.Carve[Rule](l, MaxPlaces)
	c.Slots = shm.Carve[Slot](l, megaflows)
	c.Ports = shm.Carve[datapath.PortCounters](l, port.MaxPorts)
	c.Workers = shm.Carve[datapath.Counters](l, workers.Max)
	c.Tunnels = shm.Carve[underlay.Record](l, underlay.MaxTemplates)
	if l.Mem != nil {
		c.header, c.journal = &header[0], &j[0]
	}
	return c
}

// New makes an empty region for caches of that many megaflow slots.
func New(megaflows int) (*Region, error) {
	var l shm.Layout
	carve(&l, megaflows)
	region, err := shm.Create("counters", l.Off)
	if err != nil {
		return nil, err
	}
	c := carve(&shm.Layout{Mem: region.Bytes()}, megaflows)
	c.region = region
	*c.header = header{Magic: magic, Version: version, Rules: MaxPlaces, Megaflows: uint64(megaflows)}
	return c, nil
}

// Open opens a region that an earlier control process made, and
// finishes the credit in the middle of which it died. It owns fd.
func Open(fd, megaflows int) (*Region, error) {
	region, err := shm.Open(fd)
	if err != nil {
		return nil, err
	}
	var l shm.Layout
	carve(&l, megaflows)
	if len(region.Bytes()) < l.Off {
		region.Close()
		return nil, fmt.Errorf("counter region of %d bytes, %d needed", len(region.Bytes()), l.Off)
	}
	c := carve(&shm.Layout{Mem: region.Bytes()}, megaflows)
	c.region = region
	want := header{Magic: magic, Version: version, Rules: MaxPlaces, Megaflows: uint64(megaflows)}
	want.Slots = min(c.header.Slots, want.Megaflows)
	if *c.header != want {
		region.Close()
		return nil, fmt.Errorf("counter region of another layout")
	}
	c.replay()
	return c, nil
}

// replay carries out the journal, if it is whole. Doing so twice is harmless.
func (c *Region) replay() {
	j := c.journal
	if j.State.Load() != 1 {
		return
	}
	if j.Slot < uint64(len(c.Slots)) {
		c.Slots[j.Slot].Packets, c.Slots[j.Slot].Bytes = j.Packets, j.Bytes
	}
	for _, e := range j.Entries[:min(j.Count, maxJournal)] {
		if e.Rule < MaxPlaces {
			r := &c.Rules[e.Rule]
			r.Packets, r.Bytes, r.UsedNS = e.Packets, e.Bytes, e.UsedNS
		}
	}
	j.State.Store(0)
}

// Credit adds packets and bytes to each of rules (slots; as often as they are
// listed) and, with slot not flowtable.NoSlot, to what megaflow slot has been
// credited for. usedNS is the time of the last of them.
func (c *Region) Credit(slot uint32, rules []uint32, packets, bytes, usedNS uint64) {
	j := c.journal
	j.Slot = uint64(flowtable.NoSlot)
	if slot != flowtable.NoSlot {
		s := &c.Slots[slot]
		j.Slot, j.Packets, j.Bytes = uint64(slot), s.Packets+packets, s.Bytes+bytes
	}
	j.Count = 0
	for _, r := range rules {
		c.enter(r, packets, bytes, usedNS)
	}
	c.commit()
}

// enter adds one rule's part to the journal, to its entry if it has one.
func (c *Region) enter(rule uint32, packets, bytes, usedNS uint64) {
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
	r := &c.Rules[rule]
	j.Entries[j.Count] = journalEntry{
		Rule: uint64(rule), Packets: r.Packets + packets, Bytes: r.Bytes + bytes, UsedNS: max(r.UsedNS, usedNS),
	}
	j.Count++
}

func (c *Region) commit() {
	c.journal.State.Store(1)
	c.replay()
}

// Begin notes that slot's statistics start at 0 and count for rules, once it is
// installed under generation. It must not be in any worker yet.
func (c *Region) Begin(slot, generation uint32, rules []uint32) {
	s := &c.Slots[slot]
	atomic.StoreUint32(&s.RuleCount, 0)
	s.Packets, s.Bytes, s.Generation = 0, 0, generation
	c.header.Slots = max(c.header.Slots, uint64(slot)+1)
	c.Assign(slot, rules)
}

// Assign notes the rules that slot counts for from now on. All that it has
// counted must have been credited.
func (c *Region) Assign(slot uint32, rules []uint32) {
	s := &c.Slots[slot]
	copy(s.Rules[:], rules)
	atomic.StoreUint32(&s.RuleCount, uint32(len(rules)))
}

// End notes that slot is free.
func (c *Region) End(slot uint32) { atomic.StoreUint32(&c.Slots[slot].RuleCount, 0) }

// FD is the descriptor of the region, for the engine to keep.
func (c *Region) FD() int { return c.region.FD() }

// UsedSlots is above every megaflow slot that was ever used.
func (c *Region) UsedSlots() uint32 { return uint32(c.header.Slots) }

// Forget empties the rows of megaflows and tunnels: no worker has any.
func (c *Region) Forget() {
	clear(c.Slots[:c.header.Slots])
	clear(c.Tunnels)
}

// SPDX-License-Identifier: Apache-2.0

// Package counters is the memory in which control keeps counters: those of rules and
// of dead engines, and how much of each megaflow's statistics has been credited to
// rules. The engine keeps the memory while there is no control process, so the
// counters survive a killed control process.
//
// A credit changes several counters. A journal of their next values makes it atomic:
// the next process that opens the region finishes a credit that was interrupted.
//
// A Region has no lock of its own. The pipeline's lock, held for writing, guards it;
// the lock of the underlay's templates guards the rows of tunnels.
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

	// MaxRules is the number of flows. Further flows are refused.
	MaxRules = 1 << 20
	// MaxPlaces is the number of rule slots in the region. One change may replace all
	// flows, and removed flows keep their slots until no megaflow counts for them.
	MaxPlaces = 2 * MaxRules
	// maxJournal is the number of rules that one credit changes atomically. A
	// translation with more rules is credited in several steps.
	maxJournal = 512
	// SlotRules is the number of rules stored for a megaflow slot. A megaflow with
	// more rules loses its counts of the last second if it is removed and control
	// dies before it is credited.
	SlotRules = 9
)

type header struct {
	Magic, Version   uint64
	Rules, Megaflows uint64
	// Slots is higher than every megaflow slot ever used, so that the next control
	// process need not touch the memory of the other slots.
	Slots uint64
}

// Rule has the statistics of one rule. Its index is the rule's slot.
type Rule struct {
	Packets, Bytes        uint64
	CreatedNS, ModifiedNS uint64 // CLOCK_MONOTONIC
	UsedNS                uint64 // CLOCK_MONOTONIC; 0: never
	// IdleTimeout and HardTimeout are the rule's timeouts in seconds after
	// fin_timeout has shortened them; 0: as in the rule's text.
	IdleTimeout, HardTimeout uint16
	_                        [20]byte
}

// Slot stores how much of a megaflow's statistics, summed over the workers, has been
// credited, and to which rules.
type Slot struct {
	Packets, Bytes uint64
	RuleCount      uint32 // 0: nothing to credit; more than SlotRules: not all rules are stored
	// Generation is flowtable.Flow.Generation of this use of the slot, in every
	// worker. Statistics of another generation belong to another megaflow.
	Generation uint32
	Rules      [SlotRules]uint32
	_          [4]byte
}

type journal struct {
	State          atomic.Uint64 // 1: the journal is complete and must be applied
	Slot           uint64        // flowtable.NoSlot: no megaflow slot
	Packets, Bytes uint64        // next values of the slot
	Count          uint64
	Entries        [maxJournal]journalEntry
}

type journalEntry struct {
	Rule                   uint64
	Packets, Bytes, UsedNS uint64
}

// Region is the mapped memory. See the package comment for its locks.
type Region struct {
	region  *shm.Region
	header  *header
	journal *journal
	Rules   []Rule
	Slots   []Slot
	// Ports and Workers have the counters of dead engines. Unsigned arithmetic wraps,
	// so a port's counters start at 0 when its number is used again.
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

// New makes an empty region for caches of megaflows slots.
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

// Open opens a region that an earlier control process made, and finishes an
// interrupted credit. It takes ownership of fd.
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

// replay applies the journal if it is complete. Applying it twice is harmless.
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

// Credit adds packets and bytes to each rule slot in rules, once for each time that
// it is listed. Unless slot is flowtable.NoSlot, it also adds them to the credited
// statistics of this megaflow slot. usedNS is the time of the last packet.
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

// enter adds one rule's packets and bytes to the journal. A rule that is in the
// journal already keeps its entry.
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

// Begin records that the statistics of slot start at 0 and count for rules once it is
// installed under generation. No worker may have the slot yet.
func (c *Region) Begin(slot, generation uint32, rules []uint32) {
	s := &c.Slots[slot]
	atomic.StoreUint32(&s.RuleCount, 0)
	s.Packets, s.Bytes, s.Generation = 0, 0, generation
	c.header.Slots = max(c.header.Slots, uint64(slot)+1)
	c.Assign(slot, rules)
}

// Assign records the rules for which slot counts from now on. Everything counted
// before must have been credited.
func (c *Region) Assign(slot uint32, rules []uint32) {
	s := &c.Slots[slot]
	copy(s.Rules[:], rules)
	atomic.StoreUint32(&s.RuleCount, uint32(len(rules)))
}

// End records that slot is free.
func (c *Region) End(slot uint32) { atomic.StoreUint32(&c.Slots[slot].RuleCount, 0) }

// FD returns the descriptor of the region, which the engine keeps.
func (c *Region) FD() int { return c.region.FD() }

// UsedSlots returns a number above every megaflow slot ever used.
func (c *Region) UsedSlots() uint32 { return uint32(c.header.Slots) }

// Forget clears the rows of megaflows and tunnels. No worker may have any.
func (c *Region) Forget() {
	clear(c.Slots[:c.header.Slots])
	clear(c.Tunnels)
}

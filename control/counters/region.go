// SPDX-License-Identifier: Apache-2.0

// Package counters has a region of shared memory with the counters of rules, of dead engines and of
// megaflows. The engine process keeps the region for the next control process.
//
// The transfer of a megaflow's new counts to its rules is called a credit. A journal makes it atomic: if
// the control process dies during a credit, the next process that opens the region completes it.
//
// A Region has no lock. A caller holds the pipeline's lock for writing. If it uses the records of tunnels,
// it holds the lock of the templates (package underlay) instead.
package counters

import (
	"fmt"
	"sync/atomic"

	"weft/control/underlay"
	"weft/control/workers"
	"weft/datapath"
	"weft/flowtable"
	"weft/internal/shm"
	"weft/packet"
	"weft/port"
)

const (
	magic   = 0x7765_6674_6374_7273 // "weftctrs"
	version = 2

	// MaxRules is the limit of flows. Further flows are refused.
	MaxRules = 1 << 20
	// MaxRows is the number of elements of Region.Rules. A removed rule keeps its element until no
	// megaflow counts for the rule.
	MaxRows = centralRows + port.MaxPorts
	// centralRows is the index in Region.Rules from which the rules of weft-central begin.
	centralRows = 2 * MaxRules
	// maxJournal is the largest number of rules in one atomic step of a credit (the
	// transfer of a megaflow's counts to its rules).
	maxJournal = 512
	// SlotRules is the number of rules that the region stores for each megaflow. If a megaflow has more
	// rules and the control process dies, the megaflow may lose the counts of its last second.
	SlotRules = 9
)

// CentralRow returns the index in Region.Rules of the rule that weft-central has for a port. It is fixed
// for each port number.
func CentralRow(port uint32) uint32 { return centralRows + port }

// header is the start of a region. In every version of the layout, the journal, the rules and the megaflow
// slots follow it.
type header struct {
	Magic, Version   uint64
	Rules, Megaflows uint64
	// Slots is greater than the index of every megaflow slot that was ever used.
	Slots uint64
	// Reasons is the number of drop reasons, and WorkerWords the size of a worker's
	// counters in 64-bit words. Version 1 has neither.
	Reasons, WorkerWords uint64
}

func newHeader(megaflows int) header {
	return header{Magic: magic, Version: version, Rules: MaxRows, Megaflows: uint64(megaflows),
		Reasons: uint64(packet.DropReasons), WorkerWords: uint64(len(shm.Words(new(datapath.Counters))))}
}

// Rule has the statistics of one rule.
type Rule struct {
	Packets, Bytes        uint64
	CreatedNS, ModifiedNS uint64 // CLOCK_MONOTONIC
	UsedNS                uint64 // CLOCK_MONOTONIC; 0: never
	// IdleTimeout and HardTimeout are the rule's timeouts in seconds after
	// fin_timeout has shortened them, otherwise 0.
	IdleTimeout, HardTimeout uint16
	_                        [20]byte
}

// Slot has the counts of one megaflow that have already been added to its rules, summed over the workers.
// It also has the indexes of these rules in Region.Rules.
type Slot struct {
	Packets, Bytes uint64
	RuleCount      uint32 // number of rules of the megaflow; if larger than SlotRules, only some are stored
	// Generation is the slot's generation when the counts were made. Counts of other generations belong to
	// other megaflows.
	Generation uint32
	Rules      [SlotRules]uint32
	_          [4]byte
}

type journal struct {
	// State is 1 while the journal is complete but the counts are not yet all in the rules. Open then
	// completes the transfer from the journal.
	State          atomic.Uint64
	Slot           uint64 // flowtable.NoSlot: no megaflow slot
	Packets, Bytes uint64 // values of the slot after the credit
	Count          uint64
	Entries        [maxJournal]journalEntry
}

type journalEntry struct {
	Rule                   uint64
	Packets, Bytes, UsedNS uint64
}

// Region is the memory with the counters, mapped into the control process. The package comment
// says which locks callers hold.
type Region struct {
	region  *shm.Region
	header  *header
	journal *journal
	Rules   []Rule
	Slots   []Slot
	// Ports and the fields after it have the counters of dead engines. A counter of a port may be negative
	// (wrapped below 0), because only its sum with the present engine's counter has a meaning.
	Ports   []datapath.PortCounters
	Workers []datapath.Counters // index: worker
	Tunnels []underlay.Record   // index: template
}

// carveRules lays out the part of a region that all versions have: header, journal, rules and
// slots.
func carveRules(l *shm.Layout, megaflows int) *Region {
	c := &Region{}
	header := shm.Carve[header](l, 1)
	j := shm.Carve[journal](l, 1)
	c.Rules = shm.Carve[Rule](l, MaxRows)
	c.Slots = shm.Carve[Slot](l, megaflows)
	if l.Mem != nil {
		c.header, c.journal = &header[0], &j[0]
	}
	return c
}

func carve(l *shm.Layout, megaflows int) *Region {
	c := carveRules(l, megaflows)
	c.Ports = shm.Carve[datapath.PortCounters](l, port.MaxPorts)
	c.Workers = shm.Carve[datapath.Counters](l, workers.Max)
	c.Tunnels = shm.Carve[underlay.Record](l, underlay.MaxTemplates)
	return c
}

// New makes an empty region for workers' caches with the given number of megaflow slots.
func New(megaflows int) (*Region, error) {
	var l shm.Layout
	carve(&l, megaflows)
	region, err := shm.Create("counters", l.Off)
	if err != nil {
		return nil, err
	}
	c := carve(&shm.Layout{Mem: region.Bytes()}, megaflows)
	c.region = region
	*c.header = newHeader(megaflows)
	return c, nil
}

// Open opens a region that an earlier control process made, and owns its descriptor fd from then on. If
// the earlier process died while it added a megaflow's counts to the rules, Open completes that. If the
// region has another version or number of megaflows, Open copies it into a new one.
func Open(fd, megaflows int) (*Region, error) {
	region, err := shm.Open(fd)
	if err != nil {
		return nil, err
	}
	mem := region.Bytes()
	there := slotsOf(mem) // differs from the argument megaflows if the setting has changed
	var l shm.Layout
	carveRules(&l, there)
	if len(mem) < l.Off {
		region.Close()
		return nil, fmt.Errorf("counter region of %d bytes, %d needed", len(mem), l.Off)
	}
	c := carveRules(&shm.Layout{Mem: mem}, there)
	has, want := *c.header, newHeader(megaflows)
	want.Slots = min(has.Slots, has.Megaflows)
	has.Version, has.Reasons, has.WorkerWords, has.Megaflows = want.Version, want.Reasons, want.WorkerWords, want.Megaflows
	if has != want || c.header.Version == 0 || c.header.Version > version {
		region.Close()
		return nil, fmt.Errorf("counter region of another layout")
	}
	c.replay()
	if *c.header != want {
		defer region.Close()
		return c.convert(mem, l.Off, megaflows)
	}
	l = shm.Layout{}
	carve(&l, megaflows)
	if len(mem) < l.Off {
		region.Close()
		return nil, fmt.Errorf("counter region of %d bytes, %d needed", len(mem), l.Off)
	}
	c = carve(&shm.Layout{Mem: mem}, megaflows)
	c.region = region
	return c, nil
}

// slotsOf returns the number of megaflow slots of the region in mem, at most
// flowtable.MostMegaflows.
func slotsOf(mem []byte) int {
	var l shm.Layout
	if shm.Carve[header](&l, 1); len(mem) < l.Off {
		return 0
	}
	return int(min(shm.Carve[header](&shm.Layout{Mem: mem}, 1)[0].Megaflows, flowtable.MostMegaflows))
}

func (c *Region) replay() {
	j := c.journal
	if j.State.Load() != 1 {
		return
	}
	if j.Slot < uint64(len(c.Slots)) {
		c.Slots[j.Slot].Packets, c.Slots[j.Slot].Bytes = j.Packets, j.Bytes
	}
	for _, e := range j.Entries[:min(j.Count, maxJournal)] {
		if e.Rule < MaxRows {
			r := &c.Rules[e.Rule]
			r.Packets, r.Bytes, r.UsedNS = e.Packets, e.Bytes, e.UsedNS
		}
	}
	j.State.Store(0)
}

// Credit adds packets and bytes to the counts of each rule in the list. Unless slot is flowtable.NoSlot,
// it also adds them to the counts in the megaflow slot. A rule that is listed twice gets them twice.
// usedNS is the time of the last packet.
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

// Begin records that a new megaflow uses slot, and sets its counts to 0. "rules" has the indexes of its
// rules in Region.Rules. The caller must call Begin before any worker has the megaflow.
func (c *Region) Begin(slot, generation uint32, rules []uint32) {
	s := &c.Slots[slot]
	atomic.StoreUint32(&s.RuleCount, 0)
	s.Packets, s.Bytes, s.Generation = 0, 0, generation
	c.header.Slots = max(c.header.Slots, uint64(slot)+1)
	c.Assign(slot, rules)
}

// Assign replaces the rules of a megaflow. The caller must first add all earlier counts to the old rules,
// with Credit.
func (c *Region) Assign(slot uint32, rules []uint32) {
	s := &c.Slots[slot]
	copy(s.Rules[:], rules)
	atomic.StoreUint32(&s.RuleCount, uint32(len(rules)))
}

// End records that the megaflow slot is free.
func (c *Region) End(slot uint32) { atomic.StoreUint32(&c.Slots[slot].RuleCount, 0) }

// FD returns the region's descriptor, which the region keeps.
func (c *Region) FD() int { return c.region.FD() }

// UsedSlots returns a number that is greater than the index of every megaflow slot that was ever used.
func (c *Region) UsedSlots() uint32 { return uint32(c.header.Slots) }

// Forget clears the statistics of megaflows and the records of tunnels. The caller makes sure that no
// worker has a megaflow or a tunnel.
func (c *Region) Forget() {
	clear(c.Slots[:c.header.Slots])
	clear(c.Tunnels)
}

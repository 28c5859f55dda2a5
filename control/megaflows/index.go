// SPDX-License-Identifier: Apache-2.0

// Package megaflows is control's copy of the workers' caches. It assigns the slots,
// finds the megaflow of a match and the megaflows that depend on an address, and
// divides slots, masks and actions between the ports.
//
// Index.mu guards the index and is taken after Pipeline.mu. Admit and Forget call
// functions of the caller under Index.mu; these functions take only the locks of the
// command rings. The pipeline guards those fields of a Megaflow that change.
package megaflows

import (
	"hash/maphash"
	"slices"
	"sync"

	"weft/flowtable"
	"weft/internal/share"
	"weft/openflow"
)

// Megaflow is one entry of the workers' caches. It has the same slot in all workers.
// Key, Actions and Owner are constant once the megaflow is in the index. Pipeline.mu
// guards the other exported fields.
type Megaflow struct {
	Slot    uint32
	Owner   uint32 // port whose quota it uses
	Key     flowtable.Key
	record  *maskRecord // mask of Key; Admit sets it
	Actions []flowtable.Action
	MadeNS  uint64
	next    *Megaflow // next megaflow with the same hash in Index.index
	// Generation is the generation of the megaflow's slot while the megaflow is
	// installed. Counters with another generation belong to another megaflow of the
	// same slot.
	Generation uint32

	Rules     []*openflow.Rule       // rules for which its frames count
	RuleRows  []uint32               // rows of Rules in the counter region
	Missed    []openflow.BridgeTable // tables in which its look-ups find no flow
	Teaches   *Teaching              // nil: its frames teach nothing
	Groups    []openflow.GroupHit
	Patches   []openflow.Crossing
	Tables    openflow.TableSet // tables looked up
	addresses []addressUse      // addresses on which the translation depends
	UsedPorts bool
	Asks      bool   // nobody knew an address that the translation asked for
	MustAsk   bool   // Translation.MustAsk
	UsedNS    uint64 // time of the last hit, or MadeNS
}

// Teaching has the effects of the actions normal, learn and fin_timeout: learned
// addresses, learned flows and shorter timeouts.
type Teaching struct {
	Learns   []openflow.Learn
	Learned  []openflow.FlowMod
	Finished []openflow.Finished
}

// Mask returns the mask of a megaflow in the index.
func (m *Megaflow) Mask() *flowtable.Key { return &m.record.mask }

// SetEffects copies the side effects of the translation t to m, except the counted
// rules and groups.
func (m *Megaflow) SetEffects(t *openflow.Translation) {
	m.UsedPorts, m.Asks, m.MustAsk, m.Tables, m.Teaches = t.UsedPorts, t.Question.Valid(), t.MustAsk, t.Tables, nil
	if len(t.Learns) > 0 || len(t.Learned) > 0 || len(t.Finished) > 0 {
		m.Teaches = &Teaching{t.Learns, t.Learned, t.Finished}
	}
}

// Index has the megaflows in the workers' caches. It assigns a slot to each.
type Index struct {
	limits flowtable.Sizes

	mu    sync.Mutex
	slots []*Megaflow          // by slot; nil: free or being removed
	free  []uint32             // free slots below len(slots)
	index map[uint64]*Megaflow // megaflows by hash; Megaflow.next links megaflows with equal hashes
	seed  maphash.Seed
	users addressUsers
	// masks has the masks in use. A megaflow is refused if the workers have no room for
	// its mask.
	masks    map[flowtable.Key]*maskRecord
	nextMask uint32
	// quotas by port; the reserved masks that narrow returns do not count
	flowShares, maskShares, actionShares *share.Ports
}

type maskRecord struct {
	mask      flowtable.Key
	id, flows uint32
	owner     uint32 // port of its first megaflow
}

// New returns an empty index for caches of the given sizes.
func New(limits flowtable.Sizes) *Index {
	return &Index{limits: limits, index: map[uint64]*Megaflow{}, seed: maphash.MakeSeed(), masks: map[flowtable.Key]*maskRecord{}, users: addressUsers{},
		flowShares: share.New(limits.Megaflows), maskShares: share.New(limits.Masks - NarrowMasks), actionShares: share.New(mostActions(limits))}
}

// Admission is the result of Admit.
type Admission uint8

const (
	Admitted Admission = iota // has a new slot and was installed
	Present                   // an equal megaflow exists
	Refused                   // a limit of slots, masks or actions refused the megaflow
)

// flowID identifies a megaflow by its match.
type flowID struct {
	key  flowtable.Key
	mask uint32
}

func (f *Index) hash(m *Megaflow, record *maskRecord) uint64 {
	return maphash.Comparable(f.seed, flowID{m.Key, record.id})
}

// find returns the megaflow in the index that has the match of m, or nil. record is the
// index's record of the mask of m.
func (f *Index) find(hash uint64, m *Megaflow, record *maskRecord) *Megaflow {
	there := f.index[hash]
	for there != nil && (there.record != record || there.Key != m.Key) {
		there = there.next
	}
	return there
}

// Admit allocates a slot for megaflow m, unless the index has an equal megaflow or a
// limit is reached. m is the translation of key, with the given mask. For an admitted
// megaflow, Admit calls install before it lets any other call of Admit or Forget
// continue.
func (f *Index) Admit(m *Megaflow, key, mask *flowtable.Key, install func(*Megaflow)) Admission {
	f.mu.Lock()
	defer f.mu.Unlock()
	verdict := f.admit(m, key, mask)
	if verdict == Admitted {
		install(m)
	}
	return verdict
}

func (f *Index) admit(m *Megaflow, key, mask *flowtable.Key) Admission {
	mask, record := f.fit(m.Owner, mask)
	for i := range key {
		m.Key[i] = key[i] & mask[i]
	}
	if record != nil && f.find(f.hash(m, record), m, record) != nil {
		return Present
	}
	switch {
	case record == nil && len(f.masks) >= f.limits.Masks:
		f.maskShares.Refuse(m.Owner)
		return Refused
	case !f.flowShares.MayHave(m.Owner, 1):
		f.flowShares.Refuse(m.Owner)
		return Refused
	case len(m.Actions) > flowtable.MaxActions || !f.actionShares.MayHave(m.Owner, len(m.Actions)):
		f.actionShares.Refuse(m.Owner)
		return Refused
	case !f.allocate(m):
		f.flowShares.Refuse(m.Owner)
		return Refused
	}
	f.enter(m, mask, record)
	return Admitted
}

func (f *Index) allocate(m *Megaflow) bool {
	if n := len(f.free); n > 0 {
		m.Slot, f.free = f.free[n-1], f.free[:n-1]
		return true
	}
	if len(f.slots) >= f.limits.Megaflows {
		return false
	}
	m.Slot = uint32(len(f.slots))
	f.slots = append(f.slots, nil)
	return true
}

func (f *Index) enter(m *Megaflow, mask *flowtable.Key, record *maskRecord) {
	if record == nil {
		f.nextMask++
		record = &maskRecord{mask: *mask, id: f.nextMask, owner: m.Owner}
		f.masks[*mask] = record
		f.maskShares.Add(m.Owner, 1)
	}
	record.flows++
	m.record = record
	hash := f.hash(m, record)
	m.next = f.index[hash]
	f.index[hash] = m
	f.slots[m.Slot] = m
	f.users.add(m)
	f.actionShares.Add(m.Owner, len(m.Actions))
	f.flowShares.Add(m.Owner, 1)
}

// Adopt adds megaflow m to the index. The workers already have m in slot m.Slot.
func (f *Index) Adopt(m *Megaflow, mask *flowtable.Key) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.reserve(m.Slot + 1)
	for i := range m.Key {
		m.Key[i] &= mask[i]
	}
	f.enter(m, mask, f.masks[*mask])
}

// Reserve takes all slots below n. The caller adopts or releases each of them.
func (f *Index) Reserve(n uint32) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.reserve(n)
}

func (f *Index) reserve(n uint32) {
	for uint32(len(f.slots)) < n {
		f.slots = append(f.slots, nil)
	}
}

// Forget removes megaflows from the index, and calls remove for each. It returns the
// megaflows that were not removed before. Their slots stay taken until Release.
func (f *Index) Forget(list []*Megaflow, remove func(*Megaflow)) []*Megaflow {
	f.mu.Lock()
	defer f.mu.Unlock()
	list = slices.DeleteFunc(list, func(m *Megaflow) bool { return !f.forget(m) })
	for _, m := range list {
		remove(m)
	}
	return list
}

func (f *Index) forget(m *Megaflow) bool {
	if f.slots[m.Slot] != m {
		return false
	}
	record := m.record
	f.unindex(m)
	if record.flows--; record.flows == 0 {
		delete(f.masks, record.mask)
		f.maskShares.Add(record.owner, -1)
	}
	f.slots[m.Slot] = nil
	f.users.remove(m)
	f.actionShares.Add(m.Owner, -len(m.Actions))
	f.flowShares.Add(m.Owner, -1)
	return true
}

func (f *Index) unindex(m *Megaflow) {
	hash := f.hash(m, m.record)
	switch first := f.index[hash]; {
	case first != m:
		before := first
		for before.next != m {
			before = before.next
		}
		before.next = m.next
	case m.next != nil:
		f.index[hash] = m.next
	default:
		delete(f.index, hash)
	}
	m.next = nil
}

// Release frees a slot that no worker uses.
func (f *Index) Release(slot uint32) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.free = append(f.free, slot)
}

// List returns all megaflows in the order of their slots.
func (f *Index) List() []*Megaflow {
	f.mu.Lock()
	defer f.mu.Unlock()
	all := make([]*Megaflow, 0, f.flowShares.Count())
	for _, m := range f.slots {
		if m != nil {
			all = append(all, m)
		}
	}
	return all
}

// At returns the megaflow of a slot, or nil.
func (f *Index) At(slot uint32) *Megaflow {
	f.mu.Lock()
	defer f.mu.Unlock()
	if int(slot) >= len(f.slots) {
		return nil
	}
	return f.slots[slot]
}

// Len returns the number of megaflows.
func (f *Index) Len() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.flowShares.Count()
}

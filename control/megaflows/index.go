// SPDX-License-Identifier: Apache-2.0

// Package megaflows has the control process's copy of the workers' flow caches. It assigns slots (the
// indexes of megaflows in the caches). It finds the megaflow of a match, and the megaflows that depend on
// an address. It divides slots, masks and actions among the ports.
//
// Index.mu guards the index and is taken after Pipeline.mu. Admit and Forget call functions of the caller
// under Index.mu; these functions take only the locks of the command rings. The pipeline guards those
// fields of a Megaflow that change.
package megaflows

import (
	"math/bits"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"

	"weft/flowtable"
	"weft/internal/share"
	"weft/openflow"
	"weft/openflow/fdb"
	"weft/openflow/ofproto"
	"weft/openflow/xlate"
)

// Megaflow is one entry of the workers' caches. It has the same slot in all workers.
// Key, Actions and Owner are constant once the megaflow is in the index. Pipeline.mu
// guards the other exported fields. A Megaflow must not be copied, because its slices
// refer to its own arrays.
type Megaflow struct {
	Slot  uint32
	Owner uint32 // port whose quota it uses
	// Generation is the generation of the megaflow's slot while the megaflow is
	// installed. Counters with another generation belong to another megaflow of the
	// same slot.
	Generation uint32
	hash       uint32      // hash of its match, the key of Index.index
	record     *maskRecord // mask of its key; Admit sets it
	longKey    *[]uint64   // the masked words of its key, if keyRoom is too small for them
	Actions    []flowtable.Action
	MadeNS     uint64
	UsedNS     uint64 // time of the last hit, or MadeNS

	Rules     []*ofproto.Rule // rules for which its frames count
	RuleRows  []uint32        // rows of Rules in the counter region
	Counted   *Counted        // further counters of its frames; nil: its frames count only for Rules
	Teaches   *Teaching       // effects of its frames on the tables; nil: none
	Tables    *xlate.TableSet // the tables in which its translation looked up flows; megaflows with the same set share it
	addresses []addressUse    // addresses on which the translation depends
	UsedPorts bool
	// Brief is true if the translation lacked something that may become available without an
	// event, such as an unknown address or a quota that was used up. The megaflow then expires
	// soon, even if it is used.
	Brief   bool
	MustAsk bool // see xlate.Translation.MustAsk

	// Arrays for the slices above, which save allocations. They suffice for most megaflows: those that
	// match one connection and have one action and one rule.
	keyRoom    [6]uint64
	actionRoom [1]flowtable.Action
	ruleRoom   [1]*ofproto.Rule
	rowRoom    [1]uint32
}

// Counted lists the tables, groups and patch ports that count the frames of a megaflow.
type Counted struct {
	Missed  []ofproto.BridgeTable // tables in which its look-ups find no flow
	Groups  []ofproto.GroupHit
	Patches []xlate.Crossing
}

// Teaching has the changes of tables that frames of a megaflow cause by the actions normal,
// learn and fin_timeout: learned addresses, learned flows and shorter timeouts.
type Teaching struct {
	Learns   []fdb.Learn
	Learned  []openflow.FlowMod
	Finished []ofproto.Finished
}

// words returns those words of the megaflow's key that its mask does not ignore. maskRecord.words has
// their indexes.
func (m *Megaflow) words() []uint64 {
	if m.longKey != nil {
		return *m.longKey
	}
	return m.keyRoom[:len(m.record.words)]
}

// Key returns the key of a megaflow in the index. Bits outside of the mask are 0.
func (m *Megaflow) Key() (key flowtable.Key) {
	for i, word := range m.words() {
		key[m.record.words[i]] = word
	}
	return key
}

// Recirc returns the recirc_id of the key.
func (m *Megaflow) Recirc() uint32 {
	if len(m.record.words) == 0 || m.record.words[0] != flowtable.WPort {
		return 0
	}
	return (&flowtable.Key{flowtable.WPort: m.words()[0]}).Recirc()
}

// SetActions copies the actions to m. The caller must not have added m to the index yet.
func (m *Megaflow) SetActions(actions []flowtable.Action) {
	m.Actions = append(m.actionRoom[:0], actions...)
}

// SetCounted copies from translation t everything that counts the frames of m: rules, tables, groups and
// patch ports. The function row returns the index of a rule's counters in the counter region.
func (m *Megaflow) SetCounted(t *xlate.Translation, row func(*ofproto.Rule) uint32) {
	m.Rules, m.RuleRows, m.Counted = append(m.ruleRoom[:0], t.Rules...), m.rowRoom[:0], nil
	for _, r := range t.Rules {
		m.RuleRows = append(m.RuleRows, row(r))
	}
	if len(t.Missed)+len(t.Groups)+len(t.Patches) > 0 {
		m.Counted = &Counted{slices.Clone(t.Missed), t.Groups, t.Patches}
	}
}

// CountsAs reports whether frames of m count for the same rules, tables, groups and patch ports as frames
// of translation t.
func (m *Megaflow) CountsAs(t *xlate.Translation) bool {
	c := m.Counted
	if c == nil {
		c = &Counted{}
	}
	return slices.Equal(t.Rules, m.Rules) && slices.Equal(t.Missed, c.Missed) && slices.Equal(t.Groups, c.Groups) && slices.Equal(t.Patches, c.Patches)
}

// Mask returns the mask of a megaflow in the index.
func (m *Megaflow) Mask() *flowtable.Key { return &m.record.mask }

// SetEffects copies the other results of translation t to m: whether it used ports, the tables that it
// used, and the changes of tables that frames of m cause.
func (m *Megaflow) SetEffects(t *xlate.Translation) {
	m.UsedPorts, m.Brief, m.MustAsk, m.Teaches = t.UsedPorts, t.Question.Valid() || t.Refused, t.MustAsk, nil
	m.Tables = sharedTables(&t.Tables)
	if len(t.Learns) > 0 || len(t.Learned) > 0 || len(t.Finished) > 0 {
		m.Teaches = &Teaching{t.Learns, t.Learned, t.Finished}
	}
}

// recentTables is the result of the last call of sharedTables.
var recentTables atomic.Pointer[xlate.TableSet]

// sharedTables returns a copy of tables. Consecutive calls with equal sets get one copy,
// because most translations look up the same tables, and a set is an eighth of a megaflow's
// memory.
func sharedTables(tables *xlate.TableSet) *xlate.TableSet {
	if recent := recentTables.Load(); recent != nil && *recent == *tables {
		return recent
	}
	fresh := *tables
	recentTables.Store(&fresh)
	return &fresh
}

// Index has the megaflows in the workers' caches. It assigns a slot, the same in all workers,
// to each.
type Index struct {
	limits flowtable.Sizes

	mu    sync.Mutex
	slots []*Megaflow            // by slot; nil: free or being removed
	free  []uint32               // free slots below len(slots)
	index flowtable.GrowingIndex // slots of the megaflows by Megaflow.hash
	seed  [flowtable.KeyWords]uint64
	users addressUsers
	// masks has the masks in use. A megaflow with a new mask is refused if the workers' caches
	// have no free mask.
	masks    map[flowtable.Key]*maskRecord
	recent   *maskRecord // record that fit returned last; nil: none, or no longer in use
	nextMask uint32
	// Quotas of the ports for slots, masks and actions. The reserved masks of the function narrow do not
	// count.
	flowShares, maskShares, actionShares *share.Ports
}

type maskRecord struct {
	mask      flowtable.Key
	words     []uint8 // indexes of the non-zero words of the mask
	id, flows uint32
	owner     uint32 // port of its first megaflow
}

func newMaskRecord(mask *flowtable.Key) *maskRecord {
	record := &maskRecord{mask: *mask}
	for i, word := range mask {
		if word != 0 {
			record.words = append(record.words, uint8(i))
		}
	}
	return record
}

// New returns an empty index for workers' caches of the given sizes.
func New(limits flowtable.Sizes) *Index {
	f := &Index{limits: limits, index: flowtable.NewGrowingIndex(flowtable.NewIndexOf), masks: map[flowtable.Key]*maskRecord{}, users: addressUsers{},
		flowShares: share.New(limits.Megaflows), maskShares: share.New(limits.Masks - NarrowMasks), actionShares: share.New(mostActions(limits))}
	for i := range f.seed {
		f.seed[i] = rand.Uint64()
	}
	return f
}

// Admission is the result of Admit for one megaflow.
type Admission uint8

const (
	Admitted Admission = iota // the megaflow got a slot and was installed
	Present                   // an equal megaflow exists
	Refused                   // a limit of slots, masks or actions refused the megaflow
)

// Candidate is a megaflow that Admit may add. Key and Mask are its match. Admit sets Verdict.
type Candidate struct {
	Megaflow  *Megaflow
	Key, Mask *flowtable.Key
	Verdict   Admission
}

// Admit allocates a slot for each megaflow of the list, unless the index has an equal megaflow
// or a limit is reached. Then it calls install, which sends the admitted megaflows to the
// workers. No other call of Admit or Forget runs until install returns.
func (f *Index) Admit(list []Candidate, install func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.prefetch(list)
	for i := range list {
		c := &list[i]
		c.Verdict = f.admit(c.Megaflow, c.Key, c.Mask)
	}
	install()
}

// prefetch loads the cache lines of Index.index that admit reads for candidates with
// the most recent mask. Usually all candidates have this mask.
func (f *Index) prefetch(list []Candidate) {
	var hashes [32]uint32
	n := 0
	for i := range list[:min(len(list), len(hashes))] {
		if c := &list[i]; f.recent != nil && f.recent.mask == *c.Mask {
			f.pack(c.Megaflow, c.Key, f.recent)
			hashes[n] = c.Megaflow.hash
			n++
		}
	}
	f.index.Prefetch(hashes[:n])
}

// pack stores in m the words of the key that the mask of record selects, and their hash.
func (f *Index) pack(m *Megaflow, key *flowtable.Key, record *maskRecord) {
	m.record, m.longKey = record, nil
	if n := len(record.words); n > len(m.keyRoom) {
		long := make([]uint64, n)
		m.longKey = &long
	}
	h, words := uint64(record.id), m.words()
	for n, i := range record.words {
		word := key[i] & record.mask[i]
		words[n] = word
		hi, lo := bits.Mul64(word^f.seed[i], h^f.seed[(i+1)%flowtable.KeyWords])
		h = hi ^ lo
	}
	m.hash = uint32(h ^ h>>32)
}

// contains reports whether the index has a megaflow with the match of m.
func (f *Index) contains(m *Megaflow) bool {
	_, found := f.index.Find(m.hash, func(slot uint32) bool {
		there := f.slots[slot]
		return there.record == m.record && slices.Equal(there.words(), m.words())
	})
	return found
}

func (f *Index) admit(m *Megaflow, key, mask *flowtable.Key) Admission {
	mask, record := f.fit(m.Owner, mask)
	if record != nil {
		if f.pack(m, key, record); f.contains(m) {
			return Present
		}
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
	if record == nil {
		f.pack(m, key, f.newMask(m.Owner, mask))
	}
	f.enter(m)
	return Admitted
}

func (f *Index) newMask(owner uint32, mask *flowtable.Key) *maskRecord {
	f.nextMask++
	record := newMaskRecord(mask)
	record.id, record.owner = f.nextMask, owner
	f.masks[*mask] = record
	f.maskShares.Add(owner, 1)
	return record
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

func (f *Index) enter(m *Megaflow) {
	m.record.flows++
	f.index.Insert(m.hash, m.Slot)
	f.slots[m.Slot] = m
	f.users.add(m)
	f.actionShares.Add(m.Owner, len(m.Actions))
	f.flowShares.Add(m.Owner, 1)
}

// Adopt adds megaflow m with this key and mask to the index. The workers already have m in slot
// m.Slot, from an earlier control process.
func (f *Index) Adopt(m *Megaflow, key, mask *flowtable.Key) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.reserve(m.Slot + 1)
	record := f.masks[*mask]
	if record == nil {
		record = f.newMask(m.Owner, mask)
	}
	f.pack(m, key, record)
	f.enter(m)
}

// Reserve marks all slots below n as taken, because an earlier control process may use them.
// The caller then adopts or releases each of them.
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

// Forget removes megaflows from the index, and calls remove for each. It returns the megaflows
// that this call removed. Their slots stay taken until Release.
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
	f.index.Remove(m.hash, m.Slot)
	if record := m.record; record.flows == 1 {
		delete(f.masks, record.mask)
		f.maskShares.Add(record.owner, -1)
		f.recent = nil
	}
	m.record.flows--
	f.slots[m.Slot] = nil
	f.users.remove(m)
	f.actionShares.Add(m.Owner, -len(m.Actions))
	f.flowShares.Add(m.Owner, -1)
	return true
}

// Release makes a slot available again, after all workers have removed its megaflow.
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

// PartSlots is the number of slots that one call of Part reads under the index's lock.
const PartSlots = 2048

// Part returns the megaflows of PartSlots slots, from the slot "from" on, sorted by slot. It
// reuses the memory of list. nextSlot is the first slot of the next part; 0: there is none.
func (f *Index) Part(list []*Megaflow, from uint32) (part []*Megaflow, nextSlot uint32) {
	f.mu.Lock()
	defer f.mu.Unlock()
	part = list[:0]
	end := min(from+PartSlots, uint32(len(f.slots)))
	for _, m := range f.slots[min(from, end):end] {
		if m != nil {
			part = append(part, m)
		}
	}
	if end == uint32(len(f.slots)) {
		return part, 0
	}
	return part, end
}

// Present removes from list the megaflows that are no longer in the index.
func (f *Index) Present(list []*Megaflow) []*Megaflow {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.DeleteFunc(list, func(m *Megaflow) bool { return f.slots[m.Slot] != m })
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

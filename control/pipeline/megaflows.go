// SPDX-License-Identifier: Apache-2.0

package pipeline

import (
	"hash/maphash"
	"slices"
	"sync"
	"sync/atomic"

	"weft/control/workers"
	"weft/datapath"
	"weft/flowtable"
	"weft/internal/share"
	"weft/openflow"
)

// megaflow is one entry of the workers' caches, with one slot in all workers.
// Pipeline.mu guards the fields that change.
type megaflow struct {
	slot    uint32
	owner   uint32 // port whose quota it uses
	key     flowtable.Key
	use     *maskUse // mask of key; admit sets it
	actions []flowtable.Action
	madeNS  uint64
	next    *megaflow // next megaflow with the same hash in megaflows.index
	// generation is Flow.Generation of the slot while the megaflow is installed.
	// Counts under another generation belong to another megaflow.
	generation uint32

	rules     []*openflow.Rule // rules for which its frames count
	ruleRows  []uint32         // rows in the counter region (ruleBook)
	teaches   *teaching        // nil: its frames teach nothing
	groups    []openflow.GroupHit
	tables    openflow.TableSet // tables looked up
	uses      []addressUse      // addresses on which the translation depends
	usedPorts bool
	asks      bool   // nobody answered a question of the translation
	mustAsk   bool   // Translation.MustAsk
	usedNS    uint64 // time of the last hit, or madeNS
}

// teaching has the effects of the actions normal, learn and fin_timeout.
type teaching struct {
	learn    openflow.Learn
	learned  []openflow.FlowMod
	finished []openflow.Finished
}

func (m *megaflow) mask() *flowtable.Key { return &m.use.mask }

// megaflows is control's copy of the workers' caches. It allocates the slots.
type megaflows struct {
	limits flowtable.Sizes

	mu    sync.Mutex
	slots []*megaflow          // by slot; nil: free or being removed
	free  []uint32             // free slots below len(slots)
	index map[uint64]*megaflow // by hash; megaflow.next links equal hashes
	seed  maphash.Seed
	users addressUsers
	// A megaflow is refused if the workers have no room for its mask.
	masks    map[flowtable.Key]*maskUse
	nextMask uint32
	// quotas by port; the masks reserved for narrow do not count
	flowShares, maskShares, actionShares *share.Ports
}

type maskUse struct {
	mask      flowtable.Key
	id, flows uint32
	owner     uint32 // port of its first megaflow
}

func newMegaflows(limits flowtable.Sizes) *megaflows {
	return &megaflows{limits: limits, index: map[uint64]*megaflow{}, seed: maphash.MakeSeed(), masks: map[flowtable.Key]*maskUse{}, users: addressUsers{},
		flowShares: share.New(limits.Megaflows), maskShares: share.New(limits.Masks - narrowMasks), actionShares: share.New(mostActions(limits))}
}

// admission is the result of admit.
type admission uint8

const (
	admitted admission = iota // has a new slot and must be installed
	present                   // an equal megaflow exists
	refused                   // refused at a limit of slots, masks or actions
)

// flowID identifies a megaflow by its match.
type flowID struct {
	key  flowtable.Key
	mask uint32
}

func (f *megaflows) hash(m *megaflow, use *maskUse) uint64 {
	return maphash.Comparable(f.seed, flowID{m.key, use.id})
}

// find returns the megaflow with m's match, or nil. use is the record of its mask.
func (f *megaflows) find(hash uint64, m *megaflow, use *maskUse) *megaflow {
	there := f.index[hash]
	for there != nil && (there.use != use || there.key != m.key) {
		there = there.next
	}
	return there
}

// admit allocates a slot for m, the translation of key under mask, unless an equal
// megaflow exists or a limit is reached. The caller holds f.mu.
func (f *megaflows) admit(m *megaflow, key, mask *flowtable.Key) admission {
	mask, use := f.fit(m.owner, mask)
	for i := range key {
		m.key[i] = key[i] & mask[i]
	}
	if use != nil && f.find(f.hash(m, use), m, use) != nil {
		return present
	}
	switch {
	case use == nil && len(f.masks) >= f.limits.Masks:
		f.maskShares.Refuse(m.owner)
		return refused
	case !f.flowShares.MayHave(m.owner, 1):
		f.flowShares.Refuse(m.owner)
		return refused
	case len(m.actions) > flowtable.MaxActions || !f.actionShares.MayHave(m.owner, len(m.actions)):
		f.actionShares.Refuse(m.owner)
		return refused
	case !f.allocate(m):
		f.flowShares.Refuse(m.owner)
		return refused
	}
	f.enter(m, mask, use)
	return admitted
}

func (f *megaflows) allocate(m *megaflow) bool {
	if n := len(f.free); n > 0 {
		m.slot, f.free = f.free[n-1], f.free[:n-1]
		return true
	}
	if len(f.slots) >= f.limits.Megaflows {
		return false
	}
	m.slot = uint32(len(f.slots))
	f.slots = append(f.slots, nil)
	return true
}

func (f *megaflows) enter(m *megaflow, mask *flowtable.Key, use *maskUse) {
	if use == nil {
		f.nextMask++
		use = &maskUse{mask: *mask, id: f.nextMask, owner: m.owner}
		f.masks[*mask] = use
		f.maskShares.Add(m.owner, 1)
	}
	use.flows++
	m.use = use
	hash := f.hash(m, use)
	m.next = f.index[hash]
	f.index[hash] = m
	f.slots[m.slot] = m
	f.users.add(m)
	f.actionShares.Add(m.owner, len(m.actions))
	f.flowShares.Add(m.owner, 1)
}

func (f *megaflows) adopt(m *megaflow, mask *flowtable.Key) {
	f.reserve(m.slot + 1)
	f.enter(m, mask, f.masks[*mask])
}

// reserve takes all slots below n. The caller adopts or releases each.
func (f *megaflows) reserve(n uint32) {
	for uint32(len(f.slots)) < n {
		f.slots = append(f.slots, nil)
	}
}

// forget removes m from the index. Its slot stays taken until release. forget returns
// false if m was removed before.
func (f *megaflows) forget(m *megaflow) bool {
	if f.slots[m.slot] != m {
		return false
	}
	use := m.use
	f.unindex(m)
	if use.flows--; use.flows == 0 {
		delete(f.masks, use.mask)
		f.maskShares.Add(use.owner, -1)
	}
	f.slots[m.slot] = nil
	f.users.remove(m)
	f.actionShares.Add(m.owner, -len(m.actions))
	f.flowShares.Add(m.owner, -1)
	return true
}

func (f *megaflows) unindex(m *megaflow) {
	hash := f.hash(m, m.use)
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

// release frees a slot that no worker uses.
func (f *megaflows) release(slot uint32) { f.free = append(f.free, slot) }

func (f *megaflows) list() []*megaflow {
	f.mu.Lock()
	defer f.mu.Unlock()
	all := make([]*megaflow, 0, f.flowShares.Count())
	for _, m := range f.slots {
		if m != nil {
			all = append(all, m)
		}
	}
	return all
}

func (f *megaflows) len() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.flowShares.Count()
}

// setMegaflow fills m, which has no slot, from the translation of key.
func (pl *Pipeline) setMegaflow(m *megaflow, key *flowtable.Key, t *openflow.Translation, nowNS uint64) {
	m.actions, m.madeNS, m.usedNS, m.owner = t.Actions, nowNS, nowNS, ownerOf(key)
	m.setUses(t.Addresses)
	pl.setRules(m, t)
}

// setRules makes m's frames count for the rules of t.
func (pl *Pipeline) setRules(m *megaflow, t *openflow.Translation) {
	m.rules, m.groups = t.Rules, t.Groups
	m.setEffects(t)
	m.ruleRows = pl.rules.rowsOf(t.Rules)
}

// setEffects copies everything but rules and groups from t to m.
func (m *megaflow) setEffects(t *openflow.Translation) {
	m.usedPorts, m.asks, m.mustAsk, m.tables, m.teaches = t.UsedPorts, t.Question.Valid(), t.MustAsk, t.Tables, nil
	if t.Learn.Valid || len(t.Learned) > 0 || len(t.Finished) > 0 {
		m.teaches = &teaching{t.Learn, t.Learned, t.Finished}
	}
}

// install queues m for every worker. The caller holds Pipeline.mu, for reading or
// writing, from the translation to the end of install, so that no change of tables
// comes between.
func (pl *Pipeline) install(m *megaflow, key, mask *flowtable.Key) admission {
	f := pl.megaflows
	f.mu.Lock()
	defer f.mu.Unlock()
	verdict := f.admit(m, key, mask)
	if verdict == admitted {
		pl.installSlot(m)
	}
	return verdict
}

// installSlot queues m, which has a slot, for every worker. The caller holds
// megaflows.mu, or Pipeline.mu for writing.
func (pl *Pipeline) installSlot(m *megaflow) {
	m.generation = atomic.LoadUint32(&pl.workers.Shared()[0].Cache.Flows[m.slot].Generation) + 1
	pl.counters.Begin(m.slot, m.generation, m.ruleRows)
	var room [workers.CommandRoom]byte
	pl.workers.QueueAll(datapath.AppendInstall(room[:0], m.slot, &m.key, m.mask(), m.actions))
}

// evict removes megaflows from all workers. After it, no frame hits them, and all
// their frames are counted. The caller holds the lock of changes but not Pipeline.mu.
func (pl *Pipeline) evict(list []*megaflow) {
	if len(list) == 0 {
		return
	}
	f := pl.megaflows
	f.mu.Lock()
	list = slices.DeleteFunc(list, func(m *megaflow) bool { return !f.forget(m) })
	for _, m := range list {
		pl.workers.Broadcast(datapath.AppendCommand(nil, datapath.CmdRemove, m.slot, nil))
	}
	f.mu.Unlock()
	_ = pl.workers.WaitApplied() // error ignored: a dead engine's counts stay readable
	pl.mu.Lock()
	defer pl.mu.Unlock()
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, m := range list {
		pl.pull(m)
		pl.counters.End(m.slot)
		f.release(m.slot)
	}
}

// pull adds m's new counts to the statistics of its rules. The caller holds
// Pipeline.mu for writing.
func (pl *Pipeline) pull(m *megaflow) {
	packets, bytes, usedNS := pl.workers.Statistics(m.slot, m.generation)
	credited := &pl.counters.Slots[m.slot]
	if packets == credited.Packets && bytes == credited.Bytes {
		return
	}
	packets -= credited.Packets
	bytes -= credited.Bytes
	pl.counters.Credit(m.slot, m.ruleRows, packets, bytes, usedNS)
	for _, r := range m.rules {
		r.Credit(packets, bytes, usedNS)
	}
	pl.tables.CreditGroups(m.groups, packets, bytes)
	m.usedNS = max(m.usedNS, usedNS)
	if m.teaches == nil {
		return
	}
	pl.learnOn(m.teaches.learned, usedNS)
	pl.finish(m.teaches.finished)
	learn := m.teaches.learn
	if _, exists := pl.view.byNo[learn.Port]; learn.Valid && exists {
		pl.learn(learn, usedNS)
	}
}

func (pl *Pipeline) pullAll() {
	for _, m := range pl.megaflows.list() {
		pl.pull(m)
	}
}

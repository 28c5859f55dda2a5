// SPDX-License-Identifier: Apache-2.0

package ofproto

import (
	"slices"
	"unique"

	"weft/flowtable"
	"weft/openflow"
)

// classifier finds the rule of highest priority in one table by tuple-space search. The rules with the same
// mask are in one subtable. A look-up searches the subtables in the order of their highest priority. It
// ends when no further subtable can have a rule of higher priority than the best one found.
//
// Invariants:
//   - subtables is sorted by compareSubtables, the highest priority first.
//   - A look-up depends only on the bits of the masks that it has visited, subtable by
//     subtable and stage by stage.
//   - tries has the prefix of each rule for each field in prefixFields, if the rule matches on a prefix.
//
// A subtable is searched in stages, until one shows that no rule matches. The megaflow then does not
// match on the bits of later stages. For example, if a rule matches a transport port of one host, the
// connections of other hosts still share a megaflow. Tries of the rules' prefixes (prefix.go) may show
// by a few bits of an address that a subtable has no matching rule.
type classifier struct {
	subtables []*subtable
	byMask    map[unique.Handle[openflow.Flow]]*subtable
	tries     [len(prefixFields)]prefixTrie
}

// subtable holds the rules that have the same mask.
type subtable struct {
	mask   openflow.Flow
	shared unique.Handle[openflow.Flow] // handle of mask that the matches of the rules share
	words  []uint8                      // indexes of the non-zero words of the mask, in the order of the search stages
	packed []uint8                      // positions of the mask's non-zero words in a PackedMatch
	stages []stage                      // stages of the search; a miss in any stage ends the search
	max    int                          // highest priority, -1 if empty
	// rules maps the hash of a rule's value to the first rule with this hash. Rule.next is the next rule with
	// the same hash. The highest priority is first.
	rules      map[uint64]*Rule
	priorities map[uint16]int // number of rules by priority
}

// stage is one step in the search of a subtable. It compares the frame with some words of the mask.
type stage struct {
	words    []uint8
	prefixes []prefixLength // prefixes that the mask has in the words of this stage
	// seen counts the rules of the subtable by the hash of their values in the words of this stage and the
	// earlier ones. The last stage has no such map.
	seen map[uint64]int
}

// prefixLength says that a mask has the first "length" bits of a field. "field" is the index in
// prefixFields.
type prefixLength struct {
	field, length uint8
}

// stageOf returns the search stage that compares a word of a Flow. Stage 0 has the words that change least:
// ports, tunnels, metadata and registers. Then come Ethernet, IP, and the transport header.
func stageOf(word int) int {
	switch {
	case word == flowtable.WEthDst || word == flowtable.WEthSrc:
		return 1
	case word == flowtable.WL4 || word >= flowtable.WARPSha && word < flowtable.WCT:
		return 3
	case word == flowtable.WIP || word == flowtable.WIPv4 || word >= flowtable.WIPv6Src && word < flowtable.WTunID:
		return 2
	}
	return 0 // ports, tunnels, metadata, registers
}

const stageCount = 4

func newSubtable(shared unique.Handle[openflow.Flow]) *subtable {
	s := &subtable{shared: shared, max: -1, rules: make(map[uint64]*Rule), priorities: make(map[uint16]int)}
	if shared != (unique.Handle[openflow.Flow]{}) {
		s.mask = shared.Value()
	}
	mask, place, places := &s.mask, uint8(0), [openflow.FlowWords]uint8{}
	for i, m := range mask {
		places[i] = place
		if m != 0 {
			place++
		}
	}
	for n := range stageCount {
		first := len(s.words)
		for i, m := range mask {
			if m != 0 && stageOf(i) == n {
				s.words = append(s.words, uint8(i))
				s.packed = append(s.packed, places[i])
			}
		}
		if len(s.words) > first {
			s.stages = append(s.stages, stage{seen: make(map[uint64]int)})
		}
	}
	if len(s.stages) == 0 {
		s.stages = []stage{{}}
	}
	s.stages[len(s.stages)-1].seen = nil
	at := 0
	for i := range s.stages {
		first := at
		for at < len(s.words) && (at == first || stageOf(int(s.words[at])) == stageOf(int(s.words[first]))) {
			at++
		}
		s.stages[i].words = s.words[first:at]
	}
	s.findPrefixes()
	return s
}

// findPrefixes finds the fields whose first bits are in the mask. It stores the number of these bits in the
// search stage that compares the field.
func (s *subtable) findPrefixes() {
	for i := range prefixFields {
		p := &prefixFields[i]
		length := p.length(&s.mask)
		if length == 0 {
			continue
		}
		for j := range s.stages {
			if words := s.stages[j].words; stageOf(int(words[0])) == p.stage() {
				s.stages[j].prefixes = append(s.stages[j].prefixes, prefixLength{uint8(i), length})
			}
		}
	}
}

// mix continues the hash h with the words of f that have these indexes, and returns the result. Only the
// bits in the subtable's mask count.
func (s *subtable) mix(h uint64, words []uint8, f *openflow.Flow) uint64 {
	const prime = 0x9e3779b97f4a7c15
	for _, w := range words {
		h = (h ^ f[w]&s.mask[w]) * prime
		h ^= h >> 32
	}
	return h
}

// hash returns the hash of the value of match m, which has the mask of the subtable.
func (s *subtable) hash(m openflow.PackedMatch) uint64 {
	f := s.expand(m)
	return s.mix(1, s.words, &f)
}

// expand returns the value of the packed match m as a Flow. m has the mask of the subtable.
func (s *subtable) expand(m openflow.PackedMatch) (f openflow.Flow) {
	for i, w := range s.words {
		f[w] = m.Word(int(s.packed[i]))
	}
	return f
}

// note updates stage.seen of all stages for a rule with the value f. n is 1 for a new rule and -1 for a
// removed one.
func (s *subtable) note(f *openflow.Flow, n int) {
	h := uint64(1)
	for i := range s.stages[:len(s.stages)-1] {
		st := &s.stages[i]
		h = s.mix(h, st.words, f)
		if st.seen[h] += n; st.seen[h] == 0 {
			delete(st.seen, h)
		}
	}
}

// find returns the first rule with the same hash as the flow f, or nil. The caller must compare the values,
// because different values may have the same hash. v records the bits of f that the search has read.
func (s *subtable) find(f *openflow.Flow, v Visitor, l *prefixLookup) *Rule {
	h := uint64(1)
	for i := range s.stages {
		st := &s.stages[i]
		h = s.mix(h, st.words, f)
		there := false
		var first *Rule
		if st.seen != nil {
			there = st.seen[h] != 0
		} else {
			first = s.rules[h]
			there = first != nil
		}
		// Tries can only exclude the subtable if no rule has the flow's hash at this stage.
		if !there && len(st.prefixes) > 0 && l.rulesOut(st.prefixes, v) {
			return nil
		}
		v.Visit(st.words, &s.mask)
		if !there || first != nil {
			return first
		}
	}
	return nil
}

// matches reports whether rule r of this subtable matches the flow f.
func (s *subtable) matches(r *Rule, f *openflow.Flow) bool {
	for i, w := range s.words {
		if f[w]&s.mask[w] != r.Match.Word(int(s.packed[i])) {
			return false
		}
	}
	return true
}

// Visitor records which bits of a flow a look-up has read. The megaflow must match on these bits.
type Visitor interface {
	// Visit records the bits of "mask" in the words with these indexes.
	Visit(words []uint8, mask *openflow.Flow)
	// VisitWord records the bits of "mask" in one word.
	VisitWord(word int, mask uint64)
}

// prefixLookup has the results of the prefix tries for one flow. A look-up searches several subtables, and
// asks a trie only once.
type prefixLookup struct {
	c     *classifier
	f     *openflow.Flow
	found [len(prefixFields)]prefixFound
}

// rulesOut reports whether the prefix tries prove that no rule of a subtable matches the flow. They prove it
// by one field: no rule of the table has a prefix of the subtable's length that is equal to the first bits
// of the flow's field. If several fields prove it, rulesOut uses the one of which it must read the fewest
// bits. v records these bits.
func (l *prefixLookup) rulesOut(prefixes []prefixLength, v Visitor) bool {
	best, bits := -1, uint8(0)
	for _, p := range prefixes {
		found := &l.found[p.field]
		if !found.done {
			*found = l.c.tries[p.field].lookup(prefixFields[p.field].value(l.f))
		}
		if looked := prefixFields[p.field].round(found.looked); !found.contains(p.length) && (best < 0 || looked < bits) {
			best, bits = int(p.field), looked
		}
	}
	if best < 0 {
		return false
	}
	p := &prefixFields[best]
	hi, lo := p.mask(bits)
	v.VisitWord(int(p.word), hi)
	if lo != 0 {
		v.VisitWord(int(p.word)+1, lo)
	}
	return true
}

// lookup returns the matching rule of highest priority for the flow f, or nil. If the rule matches because
// all parts of a conjunction have matching rules, conj is the conjunction's ID. Otherwise conj is 0.
func (c *classifier) lookup(f *openflow.Flow, v Visitor) (r *Rule, conj uint32) {
	var soft []*Rule
	r = c.search(f, v, &soft)
	if len(soft) == 0 {
		return r, 0
	}
	return c.conjunctive(f, v, r, soft)
}

// search returns the rule of highest priority that matches f and has no conjunction actions. If softRules is
// not nil, search also collects in it the matching rules that have conjunction actions and a higher
// priority. It may collect some of lower priority, too.
func (c *classifier) search(f *openflow.Flow, v Visitor, softRules *[]*Rule) *Rule {
	var best *Rule
	l := prefixLookup{c: c, f: f}
	for _, s := range c.subtables {
		if best != nil && int(best.Priority) >= s.max {
			break
		}
		for r := s.find(f, v, &l); r != nil; r = r.next {
			if best != nil && r.Priority <= best.Priority {
				break
			}
			if !s.matches(r, f) {
				continue
			}
			if !r.conjunctive {
				best = r
				break
			}
			if softRules != nil {
				*softRules = append(*softRules, r)
			}
		}
	}
	return best
}

// find returns the rule with this match and priority, or nil.
func (c *classifier) find(m openflow.PackedMatch, priority uint16) *Rule {
	s := c.byMask[m.Mask()]
	if s == nil {
		return nil
	}
	for r := s.rules[s.hash(m)]; r != nil; r = r.next {
		if r.Priority == priority && r.Match == m {
			return r
		}
	}
	return nil
}

// overlapping returns a rule of this priority that could match the same frame as m, or nil.
func (c *classifier) overlapping(m openflow.PackedMatch, priority uint16) *Rule {
	wanted := m.Unpack()
	for _, s := range c.subtables {
		if s.priorities[priority] == 0 {
			continue
		}
		for _, r := range s.rules {
			for ; r != nil; r = r.next {
				if r.Priority != priority {
					continue
				}
				if match := r.Match.Unpack(); overlap(&match, &wanted) {
					return r
				}
			}
		}
	}
	return nil
}

func overlap(a, b *openflow.Match) bool {
	for i := range a.Mask {
		if (a.Value[i]^b.Value[i])&a.Mask[i]&b.Mask[i] != 0 {
			return false
		}
	}
	return true
}

// eachPrefix calls the function fn for each field whose first bits are in the subtable's mask. length is the
// number of these bits.
func (s *subtable) eachPrefix(fn func(field int, length uint8)) {
	for i := range s.stages {
		for _, p := range s.stages[i].prefixes {
			fn(int(p.field), p.length)
		}
	}
}

func (c *classifier) insert(r *Rule) {
	s := c.byMask[r.Match.Mask()]
	if s == nil {
		if c.byMask == nil {
			c.byMask = make(map[unique.Handle[openflow.Flow]]*subtable)
		}
		s = newSubtable(r.Match.Mask())
		c.byMask[s.shared] = s
		c.subtables = append(c.subtables, s)
	}
	f := s.expand(r.Match)
	h := s.mix(1, s.words, &f)
	first := s.rules[h]
	if first == nil || first.Priority <= r.Priority {
		r.next = first
		s.rules[h] = r
	} else {
		before := first
		for before.next != nil && before.next.Priority > r.Priority {
			before = before.next
		}
		before.next, r.next = r, before.next
	}
	s.note(&f, 1)
	s.eachPrefix(func(i int, length uint8) { c.tries[i].add(prefixFields[i].value(&f), length) })
	s.priorities[r.Priority]++
	if int(r.Priority) > s.max {
		c.setMax(s, int(r.Priority))
	}
}

func (c *classifier) remove(r *Rule) {
	s := c.byMask[r.Match.Mask()]
	f := s.expand(r.Match)
	h := s.mix(1, s.words, &f)
	if first := s.rules[h]; first == r && r.next == nil {
		delete(s.rules, h)
	} else if first == r {
		s.rules[h] = r.next
	} else {
		before := first
		for before.next != r {
			before = before.next
		}
		before.next = r.next
	}
	r.next = nil
	s.note(&f, -1)
	s.eachPrefix(func(i int, length uint8) { c.tries[i].remove(prefixFields[i].value(&f), length) })
	if s.priorities[r.Priority]--; s.priorities[r.Priority] > 0 {
		return
	}
	delete(s.priorities, r.Priority)
	if len(s.priorities) == 0 {
		delete(c.byMask, s.shared)
		c.subtables = slices.Delete(c.subtables, slices.Index(c.subtables, s), slices.Index(c.subtables, s)+1)
		return
	}
	if int(r.Priority) == s.max {
		highest := -1
		for p := range s.priorities {
			highest = max(highest, int(p))
		}
		c.setMax(s, highest)
	}
}

// setMax sets the highest priority of subtable s, and moves s to its place in the sorted list.
func (c *classifier) setMax(s *subtable, highest int) {
	at := slices.Index(c.subtables, s)
	c.subtables = slices.Delete(c.subtables, at, at+1)
	s.max = highest
	at, _ = slices.BinarySearchFunc(c.subtables, s, compareSubtables)
	c.subtables = slices.Insert(c.subtables, at, s)
}

// compareSubtables compares subtables by highest priority, and then by mask. So the order does not depend on
// the time of creation, and of two overlapping rules of equal priority always the same one wins.
func compareSubtables(a, b *subtable) int {
	if a.max != b.max {
		return b.max - a.max
	}
	return slices.Compare(a.mask[:], b.mask[:])
}

package openflow

import "slices"

// classifier finds the rule of highest priority in one table by tuple-space
// search: one subtable of rules for each different mask, subtables searched in
// the order of their highest priority, until none left can hold a better rule.
//
// Invariants:
//   - subtables is sorted by compareSubtables: falling max first.
//   - A lookup that visits a subtable depends on all bits of its mask; it
//     depends on nothing of those it does not reach.
type classifier struct {
	subtables []*subtable
	byMask    map[Flow]*subtable
}

// subtable holds the rules of one mask.
type subtable struct {
	mask  Flow
	words []uint8 // those of mask that are not 0
	max   int     // highest priority, -1 if empty
	// rules by hash of their value on words; those of one hash by falling
	// priority.
	rules      map[uint64][]*Rule
	priorities map[uint16]int // number of rules
}

func newSubtable(mask *Flow) *subtable {
	s := &subtable{mask: *mask, max: -1, rules: make(map[uint64][]*Rule), priorities: make(map[uint16]int)}
	for i, m := range mask {
		if m != 0 {
			s.words = append(s.words, uint8(i))
		}
	}
	return s
}

// hash mixes the words of f that the subtable looks at.
func (s *subtable) hash(f *Flow) uint64 {
	const prime = 0x9e3779b97f4a7c15
	h := uint64(len(s.words)) * prime
	for _, w := range s.words {
		h = (h ^ f[w]&s.mask[w]) * prime
		h ^= h >> 32
	}
	return h
}

// matches tells whether f agrees with r, a rule of s.
func (s *subtable) matches(r *Rule, f *Flow) bool {
	for _, w := range s.words {
		if (f[w]^r.Match.Value[w])&s.mask[w] != 0 {
			return false
		}
	}
	return true
}

// visitor is told of each subtable a lookup goes by.
type visitor interface{ visit(s *subtable) }

// lookup finds the rule for f, or nil.
func (c *classifier) lookup(f *Flow, v visitor) *Rule {
	var best *Rule
	for _, s := range c.subtables {
		if best != nil && int(best.Priority) >= s.max {
			break
		}
		v.visit(s)
		for _, r := range s.rules[s.hash(f)] {
			if best != nil && r.Priority <= best.Priority {
				break
			}
			if s.matches(r, f) {
				best = r
				break
			}
		}
	}
	return best
}

// find returns the rule of exactly this match and priority.
func (c *classifier) find(m *Match, priority uint16) *Rule {
	s := c.byMask[m.Mask]
	if s == nil {
		return nil
	}
	for _, r := range s.rules[s.hash(&m.Value)] {
		if r.Priority == priority && r.Match == *m {
			return r
		}
	}
	return nil
}

// overlapping returns a rule of that priority that some frame matches together
// with m.
func (c *classifier) overlapping(m *Match, priority uint16) *Rule {
	for _, s := range c.subtables {
		if s.priorities[priority] == 0 {
			continue
		}
		for _, rules := range s.rules {
			for _, r := range rules {
				if r.Priority == priority && overlap(&r.Match, m) {
					return r
				}
			}
		}
	}
	return nil
}

func overlap(a, b *Match) bool {
	for i := range a.Mask {
		if (a.Value[i]^b.Value[i])&a.Mask[i]&b.Mask[i] != 0 {
			return false
		}
	}
	return true
}

func (c *classifier) insert(r *Rule) {
	s := c.byMask[r.Match.Mask]
	if s == nil {
		if c.byMask == nil {
			c.byMask = make(map[Flow]*subtable)
		}
		s = newSubtable(&r.Match.Mask)
		c.byMask[s.mask] = s
		c.subtables = append(c.subtables, s)
	}
	h := s.hash(&r.Match.Value)
	list := s.rules[h]
	at, _ := slices.BinarySearchFunc(list, r.Priority, func(o *Rule, p uint16) int { return int(p) - int(o.Priority) })
	s.rules[h] = slices.Insert(list, at, r)
	s.priorities[r.Priority]++
	if int(r.Priority) > s.max {
		c.setMax(s, int(r.Priority))
	}
}

func (c *classifier) remove(r *Rule) {
	s := c.byMask[r.Match.Mask]
	h := s.hash(&r.Match.Value)
	list := s.rules[h]
	list = slices.Delete(list, slices.Index(list, r), slices.Index(list, r)+1)
	s.rules[h] = list
	if len(list) == 0 {
		delete(s.rules, h)
	}
	if s.priorities[r.Priority]--; s.priorities[r.Priority] > 0 {
		return
	}
	delete(s.priorities, r.Priority)
	if len(s.priorities) == 0 {
		delete(c.byMask, s.mask)
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

// setMax moves s to where its new highest priority belongs.
func (c *classifier) setMax(s *subtable, highest int) {
	at := slices.Index(c.subtables, s)
	c.subtables = slices.Delete(c.subtables, at, at+1)
	s.max = highest
	at, _ = slices.BinarySearchFunc(c.subtables, s, compareSubtables)
	c.subtables = slices.Insert(c.subtables, at, s)
}

// compareSubtables is a total order, so that which of two overlapping rules of
// one priority wins depends on the rules alone, not on the order in which they
// came.
func compareSubtables(a, b *subtable) int {
	if a.max != b.max {
		return b.max - a.max
	}
	return slices.Compare(a.mask[:], b.mask[:])
}

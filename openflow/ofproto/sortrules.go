// SPDX-License-Identifier: Apache-2.0

package ofproto

import (
	"cmp"
	"slices"
	"strings"

	"weft/openflow"
)

// SortKey says by what rules are sorted: by priority or by a field of their match.
type SortKey struct {
	field   openflow.FieldID // FNone: the priority
	falling bool
}

// ParseSortKey parses "priority" or a field's name; a leading - sorts in descending
// order. Errors are *ParseError.
func ParseSortKey(text string) (SortKey, error) {
	name, falling := strings.CutPrefix(text, "-")
	id, ok := openflow.FieldByName(name)
	if !ok && name != "priority" || id.IsTLV() {
		return SortKey{}, &openflow.ParseError{Word: name, Expected: "priority, or a match field to sort by"}
	}
	return SortKey{id, falling}, nil
}

// SortRules sorts rules by the first key. Rules that are equal in a key are sorted by the next one. Rules
// without a match on a key's field come last, in ascending and in descending order.
func SortRules(rules []*Rule, keys []SortKey) {
	slices.SortStableFunc(rules, func(a, b *Rule) int {
		for _, k := range keys {
			if order := k.compare(a, b); order != 0 {
				return order
			}
		}
		return 0
	})
}

func (k SortKey) compare(a, b *Rule) int {
	order := cmp.Compare(a.Priority, b.Priority)
	if k.field != openflow.FNone {
		x, hasX := k.value(a)
		y, hasY := k.value(b)
		if !hasX || !hasY {
			return cmp.Compare(missing(hasX), missing(hasY))
		}
		order = cmp.Or(cmp.Compare(x[0], y[0]), cmp.Compare(x[1], y[1]))
	}
	if k.falling {
		return -order
	}
	return order
}

func missing(present bool) int {
	if present {
		return 0
	}
	return 1
}

// value returns the value that the match of rule r has in the key's field. It returns
// false if r does not match the field.
func (k SortKey) value(r *Rule) (openflow.Value128, bool) {
	m := r.Match.Unpack()
	s := openflow.WholeField(k.field)
	mask := s.Get(&m.Mask)
	return s.Get(&m.Value).And(mask), !mask.IsZero() && k.field.Prerequisite().Met(&m)
}

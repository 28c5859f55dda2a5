// SPDX-License-Identifier: Apache-2.0

package fdb

import "slices"

// Groups is the set of weft-central's groups that a port belongs to. It is immutable. Equal sets
// may be different Groups.
type Groups struct{ ids []string }

// NewGroups returns the set with these ids of groups, or nil for the empty set.
func NewGroups(ids []string) *Groups {
	if len(ids) == 0 {
		return nil
	}
	return &Groups{slices.Clone(ids)}
}

// Contains reports whether the set has the group with this id.
func (g *Groups) Contains(id string) bool { return g != nil && slices.Contains(g.ids, id) }

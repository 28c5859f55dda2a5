// SPDX-License-Identifier: Apache-2.0

package fdb

import "slices"

// Groups is the set of security groups that a port belongs to. weft-central, the service that configures
// ports on many hosts, defines the groups. A Groups is immutable. Two pointers to equal sets may differ. nil
// is the empty set.
type Groups struct{ ids []string }

// NewGroups returns the set of the groups with these IDs. It copies the slice. It returns nil if the slice
// is empty.
func NewGroups(ids []string) *Groups {
	if len(ids) == 0 {
		return nil
	}
	return &Groups{slices.Clone(ids)}
}

// Contains reports whether the set has the group with this id. g may be nil.
func (g *Groups) Contains(id string) bool { return g != nil && slices.Contains(g.ids, id) }

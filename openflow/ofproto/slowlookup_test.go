// SPDX-License-Identifier: Apache-2.0

package ofproto

import (
	"weft/openflow"
	"weft/openflow/slowtable"
)

// slowLookup is a linear search that finds the same rule as a table's look-up.
func slowLookup(p *Tables, table uint8, f *openflow.Flow) *Rule {
	var twin slowtable.Table[*Rule]
	for slot, seen := uint32(0), 0; seen < p.Len(); slot++ {
		r := p.Rule(slot)
		if r == nil {
			continue
		}
		seen++
		if r.Table == table {
			twin.Add(r, r.Priority, r.Match, r.Actions)
		}
	}
	r, _ := twin.Lookup(f)
	return r
}

// SPDX-License-Identifier: Apache-2.0

package xlate

// TableSet is a set of OpenFlow table numbers, with one bit for each.
type TableSet [4]uint64

// Add adds the table with this number.
func (s *TableSet) Add(table uint8) { s[table/64] |= 1 << (table % 64) }

// Meets reports whether the sets have a table in common.
func (s *TableSet) Meets(o *TableSet) bool {
	return s[0]&o[0]|s[1]&o[1]|s[2]&o[2]|s[3]&o[3] != 0
}

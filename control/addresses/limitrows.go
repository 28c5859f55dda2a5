// SPDX-License-Identifier: Apache-2.0

package addresses

import (
	"weft/control/limits"
	"weft/openflow/fdb"
)

// LimitRows is a limits.Source. It emits a row for each port, a total, and the number
// of declared addresses. A row's refusals count addresses of a port that learned too
// fast, or that used another port's address.
func (t *Table) LimitRows(emit func(limits.Row)) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	var learned, moves uint64
	for _, s := range t.table.Shares() {
		r := &s.Refused
		refused := r.Declared + r.OtherVNI + r.Moves
		learned += r.Rate
		moves += refused
		if s.Used != 0 || r.Rate != 0 {
			emit(limits.Row{Name: "macs", Unit: "entries", Holder: limits.Port(s.Port), Used: uint64(s.Used),
				Guarantee: uint64(t.table.Guarantee()), Limit: uint64(t.table.PortLimit()), Refused: r.Rate})
		}
		if refused != 0 {
			emit(limits.Row{Name: "mac_moves", Unit: "moves", Holder: limits.Port(s.Port), Refused: refused})
		}
	}
	emit(limits.Row{Name: "macs", Unit: "entries", Holder: limits.All(), Used: uint64(t.table.Len()), Limit: maxMACs, Refused: learned})
	emit(limits.Row{Name: "mac_moves", Unit: "moves", Holder: limits.All(), Refused: moves})
	emit(limits.Row{Name: "net_addresses", Unit: "entries", Holder: limits.All(), Used: uint64(t.table.NetAddresses()),
		Limit: fdb.MaxNetAddresses, Refused: t.table.RefusedNetAddresses()})
}

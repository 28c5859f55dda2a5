// SPDX-License-Identifier: Apache-2.0

package ofconn

import (
	"sync"

	"weft/control/limits"
	"weft/openflow/ofproto"
)

const (
	// maxMonitors limits the flow monitors of a connection, maxHolderMonitors those of all
	// connections of one peer (Conn.holder), maxBridgeMonitors those of all peers. Further monitors
	// are refused and counted. The limits bound the time that a change of a flow takes, because the
	// flow is compared with each monitor.
	maxMonitors       = 64
	maxHolderMonitors = 256
	maxBridgeMonitors = 512
)

// monitor is a flow monitor of a connection.
type monitor struct {
	flags    uint16
	selector *ofproto.Selector
}

// monitorCount counts the flow monitors of a bridge.
type monitorCount struct {
	mu      sync.Mutex // no lock is taken under it
	total   int
	holders map[string]int
	refused uint64
}

// add adds n monitors of a peer to the count; n may be negative. It returns false, and adds none, if
// a limit would be exceeded.
func (m *monitorCount) add(holder string, n int) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if n > 0 && (m.total+n > maxBridgeMonitors || m.holders[holder]+n > maxHolderMonitors) {
		m.refused++
		return false
	}
	if m.holders == nil {
		m.holders = map[string]int{}
	}
	m.total += n
	if m.holders[holder] += n; m.holders[holder] == 0 {
		delete(m.holders, holder)
	}
	return true
}

// limitRows reports the use and limits of monitors for "weft show limits". It is a limits.Source.
func (m *monitorCount) limitRows(emit func(limits.Row)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	emit(limits.Row{Name: "openflow_monitors", Unit: "entries", Holder: limits.All(), Used: uint64(m.total), Limit: maxBridgeMonitors, Refused: m.refused})
	for holder, n := range m.holders {
		emit(limits.Row{Name: "openflow_monitors", Unit: "entries", Holder: limits.Peer(holder), Used: uint64(n), Limit: maxHolderMonitors})
	}
}

// SPDX-License-Identifier: Apache-2.0

package ofproto

// MaxBridges is the largest number of bridges of a switch, with the numbers 0 to
// MaxBridges-1. fdb.Segment has room for 128.
const MaxBridges = 64

// BridgeTable is a table of a bridge.
type BridgeTable struct{ Bridge, Table uint8 }

// common has the limits that all bridges share.
type common struct {
	limit      int        // largest number of rules
	count      int        // rules of all bridges
	meterSlots meterTable // allocates the token buckets of meters; its map stays empty
}

// NewBridge returns the empty tables of another bridge, which shares the limits of p.
func (p *Tables) NewBridge(number uint8) *Tables {
	return &Tables{common: p.common, bridge: number}
}

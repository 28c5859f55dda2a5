// SPDX-License-Identifier: Apache-2.0

package ofproto

import "weft/internal/share"

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
	// learned counts the rules that frames have taught, by port
	learned *share.Ports
}

// learnedPart is the divisor of the limit of rules that gives the limit of those that frames
// teach: those who write flows have the others.
const learnedPart = 2

func newCommon(limit int) *common {
	return &common{limit: limit, learned: share.New(limit / learnedPart)}
}

// LearnedShares calls visit for each port whose frames have taught rules or were refused one.
// It returns the totals of taught rules and of refusals, and the limit, of all bridges.
func (p *Tables) LearnedShares(visit func(port uint32, u share.Use)) (used, limit int, refused uint64) {
	c := p.common.learned
	return c.Count(), c.Limit(), c.Each(visit)
}

// NewBridge returns the empty tables of another bridge, which shares the limits of p.
func (p *Tables) NewBridge(number uint8) *Tables {
	return &Tables{common: p.common, bridge: number}
}

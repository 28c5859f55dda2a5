// SPDX-License-Identifier: Apache-2.0

package ofproto

import "weft/internal/share"

// MaxBridges is the largest number of bridges of a switch. Their numbers are 0 to MaxBridges-1. An
// fdb.Segment has room for the numbers of 128 bridges.
const MaxBridges = 64

// BridgeTable identifies a flow table by the numbers of its bridge and of the table.
type BridgeTable struct{ Bridge, Table uint8 }

// common has the limits of the whole switch, and counts what they limit. The Tables of all bridges share one
// common.
type common struct {
	limit      int        // largest number of rules
	count      int        // number of rules of all bridges
	meterSlots meterTable // allocates the token buckets of meters; its map stays empty
	// learned counts the rules that learn actions have added, by the port whose frame executed the learn
	// action.
	learned *share.Ports
}

// learnedPart is 2: learn actions may add half of the rules that the limit allows. The other half is left
// for rules of operators and controllers.
const learnedPart = 2

func newCommon(limit int) *common {
	return &common{limit: limit, learned: share.New(limit / learnedPart)}
}

// LearnedShares calls visit for each port whose frames have made learn actions add rules, or try to. The
// results are totals of all bridges: "used" is the number of learned rules, limit the largest allowed
// number, and refused the number of refusals.
func (p *Tables) LearnedShares(visit func(port uint32, u share.Use)) (used, limit int, refused uint64) {
	c := p.common.learned
	return c.Count(), c.Limit(), c.Each(visit)
}

// NewBridge returns the empty Tables of another bridge. They share the limits of p.
func (p *Tables) NewBridge(number uint8) *Tables {
	return &Tables{common: p.common, bridge: number}
}

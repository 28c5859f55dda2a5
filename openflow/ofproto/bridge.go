// SPDX-License-Identifier: Apache-2.0

package ofproto

import "weft/internal/share"

// MaxBridges is the largest number of bridges of a switch, with the numbers 0 to MaxBridges-1.
// The bits of fdb.Segment would allow 128.
const MaxBridges = 64

// BridgeTable identifies a flow table by the numbers of its bridge and of the table.
type BridgeTable struct{ Bridge, Table uint8 }

// common has the limits of the whole switch and what counts against them. The Tables of all
// bridges share one.
type common struct {
	limit      int        // largest number of rules
	count      int        // number of rules of all bridges
	meterSlots meterTable // allocates the token buckets of meters; its map stays empty
	// learned counts the rules that learn actions added for frames, by the port that received the
	// frame
	learned *share.Ports
}

// learnedPart divides the limit of rules. The result is the limit of rules that learn actions
// add for frames. The rest is left for rules that operators and controllers write.
const learnedPart = 2

func newCommon(limit int) *common {
	return &common{limit: limit, learned: share.New(limit / learnedPart)}
}

// LearnedShares calls visit for each port for whose frames learn actions added rules or were
// refused one. The results count all bridges: "used" the learned rules, limit the most that are
// allowed, refused the refusals.
func (p *Tables) LearnedShares(visit func(port uint32, u share.Use)) (used, limit int, refused uint64) {
	c := p.common.learned
	return c.Count(), c.Limit(), c.Each(visit)
}

// NewBridge returns the empty tables of another bridge, which shares the limits of p.
func (p *Tables) NewBridge(number uint8) *Tables {
	return &Tables{common: p.common, bridge: number}
}

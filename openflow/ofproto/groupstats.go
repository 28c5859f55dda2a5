// SPDX-License-Identifier: Apache-2.0

package ofproto

import (
	"slices"

	"weft/openflow"
)

// GroupHit is a group that the translation of a frame has executed, or one of its buckets. The group's
// counters count the frames of this translation.
type GroupHit struct {
	Group  *openflow.Group
	Bucket int // -1: the group itself
}

// GroupStats are the counters of a group since it was added or modified. Packets and Bytes count the frames
// as they were before any action of a bucket.
type GroupStats struct {
	CreatedNS      uint64 // CLOCK_MONOTONIC
	Packets, Bytes uint64
	Buckets        []BucketStats // same index as Group.Buckets
}

// BucketStats are the counters of one bucket.
type BucketStats struct{ Packets, Bytes uint64 }

// CreditGroups adds packets and bytes to the counters of the groups and buckets in hits. It ignores groups
// that were deleted or replaced. It needs exclusive access to the tables.
func (p *Tables) CreditGroups(hits []GroupHit, packets, bytes uint64) {
	for _, hit := range hits {
		if p.groups[hit.Group.ID] != hit.Group {
			continue
		}
		s := p.groupStats[hit.Group.ID]
		if hit.Bucket < 0 {
			s.Packets += packets
			s.Bytes += bytes
			continue
		}
		s.Buckets[hit.Bucket].Packets += packets
		s.Buckets[hit.Bucket].Bytes += bytes
	}
}

// GroupStats returns the counters of a group, or zeros if the group no longer exists.
func (p *Tables) GroupStats(g *openflow.Group) GroupStats {
	if kept := p.groupStats[g.ID]; kept != nil {
		return *kept
	}
	return GroupStats{}
}

// GroupFlows returns how many flows have an action with each group. The key of the map is the group's
// number.
func (p *Tables) GroupFlows() map[uint32]int { return p.flowsNaming(openflow.ActGroup) }

// MeterFlows returns how many flows have an action with each meter. The key of the map is the meter's
// number.
func (p *Tables) MeterFlows() map[uint32]int { return p.flowsNaming(openflow.ActMeter) }

func (p *Tables) flowsNaming(kind openflow.ActionKind) map[uint32]int {
	flows := make(map[uint32]int)
	var named []uint32 // groups or meters that one flow names, perhaps repeatedly
	for _, r := range p.rules {
		if r == nil {
			continue
		}
		named = named[:0]
		refersTo(r.Actions, kind, func(id uint32) bool { named = append(named, id); return false })
		slices.Sort(named)
		for _, id := range slices.Compact(named) {
			flows[id]++
		}
	}
	return flows
}

// startGroupStats sets the counters of new and of modified groups to 0.
func (p *Tables) startGroupStats(oldGroups map[uint32]*openflow.Group, nowNS uint64) {
	stats := make(map[uint32]*GroupStats, len(p.groups))
	for id, g := range p.groups {
		old := p.groupStats[id]
		if old != nil && oldGroups[id] == g {
			stats[id] = old
			continue
		}
		stats[id] = &GroupStats{CreatedNS: nowNS, Buckets: make([]BucketStats, len(g.Buckets))}
		if old != nil {
			stats[id].CreatedNS = old.CreatedNS
		}
	}
	p.groupStats = stats
}

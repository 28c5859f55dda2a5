// SPDX-License-Identifier: Apache-2.0

package openflow

import "slices"

// ActionSet is an action set (ovs-actions(7), "Action Sets"): the actions of write_actions, in
// the order of writing. They are executed once, in the order of their ranks, after the last
// table. A bucket of a group is an action set too.
type ActionSet []Action

// Ranks of the actions of a set, in order of execution.
const (
	rankPop = iota
	rankPopMPLS
	rankPopPBB
	rankDecap
	rankEncap
	rankPushMPLS
	rankPushPBB
	rankPush
	rankTTL
	rankMPLSTTL
	rankSet // set_field and similar: any number, in the order of writing
	rankGroup
	rankOutput
	rankResubmit
	rankCT
	rankNone = -1 // not allowed in an action set
)

// setRank returns the rank of an action in an action set.
func setRank(kind ActionKind) int {
	switch kind {
	case ActPopVLAN:
		return rankPop
	case ActPushVLAN:
		return rankPush
	case ActDecTTL:
		return rankTTL
	case ActPopMPLS:
		return rankPopMPLS
	case ActPopPBB:
		return rankPopPBB
	case ActDecap:
		return rankDecap
	case ActEncap:
		return rankEncap
	case ActPushMPLS:
		return rankPushMPLS
	case ActPushPBB:
		return rankPushPBB
	case ActDecMPLSTTL:
		return rankMPLSTTL
	case ActSetField, ActLoad, ActMove, ActModField, ActModVLANVID, ActModVLANPCP, ActSetTunnel, ActSetQueue:
		return rankSet
	case ActGroup:
		return rankGroup
	case ActOutput:
		return rankOutput
	case ActResubmit:
		return rankResubmit
	case ActCT:
		return rankCT
	}
	return rankNone
}

// Add adds actions to the set. A new action replaces an earlier action of the same rank.
// Actions of rank rankSet never replace each other. Actions that a set cannot have are left
// out. Add may change the array behind the set.
func (s *ActionSet) Add(actions []Action) {
	for i := range actions {
		rank := setRank(actions[i].Kind)
		if rank == rankNone {
			continue
		}
		if rank != rankSet {
			*s = slices.DeleteFunc(*s, func(a Action) bool { return setRank(a.Kind) == rank })
		}
		*s = append(*s, actions[i])
	}
}

// TooLong reports whether the set has more actions than a flow may have (maxListed).
func (s ActionSet) TooLong() bool { return len(s) > maxListed }

// Ordered returns the actions in order of execution, in a new array. Of the actions that send
// the frame (rankGroup and later), it keeps only the first. It returns nil if no action sends
// the frame: the frame is dropped.
func (s ActionSet) Ordered() []Action {
	ordered := slices.Clone(s)
	slices.SortStableFunc(ordered, func(a, b Action) int { return setRank(a.Kind) - setRank(b.Kind) })
	at := slices.IndexFunc(ordered, func(a Action) bool { return setRank(a.Kind) >= rankGroup })
	if at < 0 {
		return nil
	}
	return ordered[:at+1]
}

func (p *actionParser) writeActions(t token) (Action, error) {
	if p.check.nested { // nested write_actions are refused before they are parsed, because text may nest to any depth
		return Action{}, withinAnother(t.text, t.key)
	}
	inner := *p
	inner.check.nested, inner.check.inSet, inner.check.rank, inner.check.last = true, true, 0, ""
	sub, err := inner.parse(t.value)
	p.check.strict = true
	return Action{Kind: ActWriteActions, Sub: sub}, err
}

func (p *actionParser) clearActions(token) (Action, error) {
	p.check.strict = true
	return Action{Kind: ActClearActions}, nil
}

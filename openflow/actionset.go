// SPDX-License-Identifier: Apache-2.0

package openflow

import (
	"cmp"
	"slices"
)

// ActionSet is an action set (ovs-actions(7), "Action Sets"). It holds the actions of write_actions in the
// order in which they were written. After the last table they are executed once, in the order of their
// ranks. A bucket of a group is an action set too.
type ActionSet []Action

// setRank is the place of an action in the order of execution of an action set.
type setRank uint8

const (
	rankNone setRank = iota // a set cannot have the action
	rankPop
	rankPopMPLS
	rankPopPBB
	rankDecap
	rankEncap
	rankPushMPLS
	rankPushPBB
	rankPush
	rankTTL
	rankMPLSTTL
	rankNSHTTL
	rankSet // set_field and similar: any number, in the order of writing
	rankGroup
	rankOutput
	rankResubmit
	rankCT
)

func (k ActionKind) rank() setRank { return actionRows[k].rank }

func init() {
	addAction(ActWriteActions, actionRow{words: map[string]actionParse{"write_actions": (*actionParser).writeActions},
		format: func(a *Action, names Names) string { return "write_actions(" + FormatActions(a.Sub, names) + ")" }})
	addAction(ActClearActions, actionRow{words: map[string]actionParse{"clear_actions": (*actionParser).clearActions}, format: called("clear_actions")})
}

// Add adds actions to the set. A new action replaces an earlier action of the same rank.
// Actions of rank rankSet never replace each other. Actions that a set cannot have are left
// out. Add may change the array behind the set.
func (s *ActionSet) Add(actions []Action) {
	for i := range actions {
		rank := actions[i].Kind.rank()
		if rank == rankNone {
			continue
		}
		if rank != rankSet {
			*s = slices.DeleteFunc(*s, func(a Action) bool { return a.Kind.rank() == rank })
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
	slices.SortStableFunc(ordered, func(a, b Action) int { return cmp.Compare(a.Kind.rank(), b.Kind.rank()) })
	at := slices.IndexFunc(ordered, func(a Action) bool { return a.Kind.rank() >= rankGroup })
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

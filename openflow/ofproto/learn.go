// SPDX-License-Identifier: Apache-2.0

package ofproto

import "weft/openflow"

// learnKey is the table and the cookie of the flows that a learn action adds.
type learnKey struct {
	table  uint8
	cookie uint64
}

// learnGroup counts the flows with one table and cookie, and the learn actions that add such flows.
type learnGroup struct {
	learners int // number of learn actions with a limit or delete_learned
	deleters int // number of learn actions with delete_learned
	flows    int // number of flows with the key, learned or not
}

// MayLearn reports whether the limit in the learn action allows it to add flow m. It returns true if the
// tables already have a flow with this match and priority.
func (p *Tables) MayLearn(m *openflow.FlowMod) bool {
	if m.LearnLimit == 0 {
		return true
	}
	g := p.learned[learnKey{m.Table, m.NewCookie}]
	return g == nil || g.flows < int(m.LearnLimit) || p.tables[m.Table].find(m.Match, m.Priority) != nil
}

// noteActions updates the counts of learn actions and bundle actions for a rule with these actions. n is 1
// for an added rule and -1 for a removed one.
func (p *Tables) noteActions(actions []openflow.Action, n int) {
	for i := range actions {
		a := &actions[i]
		p.noteActions(a.Sub, n)
		if a.Kind == openflow.ActBundle {
			p.bundles += n
		}
		if a.Kind != openflow.ActLearn || a.Learn.Limit == 0 && !a.Learn.DeleteLearned {
			continue
		}
		key := learnKey{a.Learn.Table, a.Learn.Cookie}
		g := p.learned[key]
		if g == nil {
			g = &learnGroup{}
			if p.learned == nil {
				p.learned = make(map[learnKey]*learnGroup)
			}
			p.learned[key] = g
			for _, r := range p.rules {
				if r != nil && r.Table == key.table && r.Cookie == key.cookie {
					g.flows++
				}
			}
		}
		g.learners += n
		if a.Learn.DeleteLearned {
			if g.deleters += n; g.deleters == 0 {
				p.orphans = append(p.orphans, key)
			}
		}
		if g.learners == 0 {
			delete(p.learned, key)
		}
	}
}

// noteLearner adds n to the number of learned rules of a port, if a learn action has added rule r for a
// frame of this port.
func (p *Tables) noteLearner(r *Rule, n int) {
	if r.learner != 0 {
		p.common.learned.Add(r.learner, n)
	}
}

// noteLearned adds n to the number of flows with the table and cookie of rule r, if there is a learn action
// for them with a limit or delete_learned.
func (p *Tables) noteLearned(r *Rule, n int) {
	if g := p.learned[learnKey{r.Table, r.Cookie}]; g != nil {
		g.flows += n
	}
}

// takeOrphans calls the function remove for the flows with a certain table and cookie, after the last learn
// action with delete_learned for them is gone. It does so for each such table and cookie. As in Open
// vSwitch, these may also be flows that no learn action has added.
func (p *Tables) takeOrphans(remove func(*Rule)) {
	for len(p.orphans) > 0 {
		key := p.orphans[0]
		p.orphans = p.orphans[1:]
		if g := p.learned[key]; g != nil && g.deleters > 0 {
			continue
		}
		for _, r := range p.rules {
			if r != nil && r.Table == key.table && r.Cookie == key.cookie {
				remove(r)
			}
		}
	}
	p.orphans = nil
}

// Learned reports whether the tables already have the flow m that a learn action adds: with the same match,
// priority, cookie and actions.
func (p *Tables) Learned(m *openflow.FlowMod) bool {
	r := p.tables[m.Table].find(m.Match, m.Priority)
	return r != nil && r.Cookie == m.NewCookie && equalLearned(r.Actions, m.Actions)
}

// ApplyLearned adds flows that learn actions have made, in order. It differs from Apply: it skips flows that
// the tables already have, and continues after a flow that is refused. The result refused is the number of
// refused flows.
func (p *Tables) ApplyLearned(mods []openflow.FlowMod, nowNS uint64) (c Changes, refused int) {
	p.releaseSlots()
	b := bundle{p: p, nowNS: nowNS}
	for i := range mods {
		if p.Learned(&mods[i]) {
			continue
		}
		before := b.mark()
		// The flow was allowed during the translation, but flows of other frames may have reached the limit since.
		if !p.MayLearn(&mods[i]) || b.apply(&mods[i]) != nil {
			b.undoSince(before)
			refused++
		}
	}
	b.mergeChanges()
	return b.changes, refused
}

// RefreshLearned restarts the timeouts of the flow m that a learn action has added. usedNS (CLOCK_MONOTONIC)
// is the arrival time of the last frame that executed the learn action. It returns false if the tables do
// not have the flow any more.
func (p *Tables) RefreshLearned(m *openflow.FlowMod, usedNS uint64) bool {
	if !p.Learned(m) {
		return false
	}
	r := p.tables[m.Table].find(m.Match, m.Priority)
	r.ModifiedNS = max(r.ModifiedNS, usedNS)
	return true
}

// equalLearned compares two lists of actions of learned flows. Such a list has only load, output and
// fin_timeout actions.
func equalLearned(a, b []openflow.Action) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if a[i].Kind != b[i].Kind || a[i].Port != b[i].Port || a[i].Dst != b[i].Dst || a[i].Value != b[i].Value {
			return false
		}
	}
	return true
}

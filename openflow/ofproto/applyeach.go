// SPDX-License-Identifier: Apache-2.0

package ofproto

import "weft/openflow"

// This file applies the changes that controllers send: each OpenFlow message alone, or many messages as one
// bundle (OFPT_BUNDLE_CONTROL).

// ApplyEach applies the changes in mods one by one, in order. A change that fails has no effect, and the
// following changes are applied nevertheless. errs has the error of each change, or nil. Otherwise ApplyEach
// does what Apply does.
func (p *Tables) ApplyEach(mods []openflow.FlowMod, nowNS uint64) (c Changes, errs []error) {
	p.releaseSlots()
	b := bundle{p: p, nowNS: nowNS}
	errs = make([]error, len(mods))
	for i := range mods {
		before := b.mark()
		if errs[i] = b.apply(&mods[i]); errs[i] != nil {
			b.undoSince(before)
		}
	}
	b.mergeChanges()
	return b.changes, errs
}

// BundleItem is one message of a bundle: a change of flows, a change of a group, or a packet-out. Only one
// of Flow, Group and Frame is set.
type BundleItem struct {
	Flow  *openflow.FlowMod
	Group *openflow.GroupMod
	Frame *openflow.PacketOut
	// Execute translates Frame. The tables then have the changes of the earlier messages of the bundle. If
	// Execute returns an error, the bundle fails.
	Execute func() error
}

// ApplyBundle applies all messages of a bundle, in order. If it returns an error (*ApplyError), the tables
// are unchanged. Otherwise it does what Apply and ApplyGroups do.
func (p *Tables) ApplyBundle(items []BundleItem, nowNS uint64) (Changes, error) {
	p.releaseSlots()
	b := bundle{p: p, nowNS: nowNS}
	start, groups := b.mark(), false
	for i := range items {
		var err error
		switch {
		case items[i].Flow != nil:
			err = b.apply(items[i].Flow)
		case items[i].Group != nil:
			groups = true
			err = b.applyGroups([]openflow.GroupMod{*items[i].Group})
		default:
			err = items[i].Execute()
		}
		if err != nil {
			b.undoSince(start)
			return Changes{}, &ApplyError{Index: i, Err: err}
		}
	}
	if groups {
		p.generation++
	}
	b.mergeChanges()
	return b.changes, nil
}

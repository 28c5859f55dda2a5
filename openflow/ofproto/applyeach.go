// SPDX-License-Identifier: Apache-2.0

package ofproto

import "weft/openflow"

// This file applies changes that arrive as OpenFlow messages: each message alone, or many
// messages as one bundle (OFPT_BUNDLE_CONTROL).

// ApplyEach applies the changes in mods, in order. Each change is applied as a whole or
// refused; errs has the error of each, or nil. In all other respects ApplyEach is like
// Apply.
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

// BundleItem is one message of a bundle. Either Flow or Group is set, or Frame with Execute.
type BundleItem struct {
	Flow  *openflow.FlowMod
	Group *openflow.GroupMod
	Frame *openflow.PacketOut
	// Execute translates Frame with the tables as the earlier items have left them. An error
	// refuses the bundle.
	Execute func() error
}

// ApplyBundle applies all changes of a bundle, in order. If it returns an error
// (*ApplyError), no change was made. In all other respects it is like Apply and
// ApplyGroups.
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

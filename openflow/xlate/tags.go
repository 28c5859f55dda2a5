// SPDX-License-Identifier: Apache-2.0

package xlate

import (
	"weft/flowtable"
	"weft/packet"
)

// maxTags is the largest number of VLAN tags of a frame in translation. A push beyond
// it ends the translation as DropNoHeadroom.
const maxTags = 6

// tag is a VLAN tag of the frame in translation.
type tag struct {
	tpid uint16 // TPID of the tag; 0: the frame keeps the TPID with which it arrived
	tci  uint16 // TCI with the bit flowtable.VLANPresent; 0: no tag
	own  uint8  // origin of the tag: 1: outer tag of the arriving frame, 2: its inner tag, 0: pushed by an action
	keep uint16 // bits of tci that no action has changed
}

// tagStack has the VLAN tags of a frame, outermost first. Pushed tags come first, then
// the two tags of the arriving frame. A tag that the frame did not have is marked as
// missing.
type tagStack struct {
	n int
	t [maxTags]tag
}

// frameTags returns the VLAN tags of the arriving frame.
func frameTags(key *flowtable.Key) tagStack {
	outer, inner := key.OuterTCI(), key.InnerTCI()
	return tagStack{n: 2, t: [maxTags]tag{{tci: outer, own: 1, keep: flowtable.VLANTCI}, {tci: inner, own: 2, keep: flowtable.VLANTCI}}}
}

var noTag tag

// tag returns the tag with index i, counted from the outermost. Beyond the last tag it returns noTag.
func (s *tagStack) tag(i int) *tag {
	if i < s.n {
		return &s.t[i]
	}
	return &noTag
}

func (s *tagStack) pop() {
	if s.n > 0 {
		copy(s.t[:], s.t[1:s.n])
		s.n--
	}
}

func (s *tagStack) push(t tag) bool {
	if s.n == maxTags {
		return false
	}
	copy(s.t[1:], s.t[:s.n])
	s.t[0] = t
	s.n++
	return true
}

// present returns the tags that are not missing, outermost first. It stores them in buf.
func (s *tagStack) present(buf *[maxTags]tag) []tag {
	n := 0
	for _, t := range s.t[:s.n] {
		if t.tci&flowtable.VLANPresent != 0 {
			buf[n] = t
			n++
		}
	}
	return buf[:n]
}

// lookTag adds bits of a VLAN tag to the megaflow's mask, as far as they come from the arriving
// frame.
func (x *xlate) lookTag(t *tag, bits uint16) {
	bits &= t.keep
	switch t.own {
	case 1:
		x.wc[flowtable.WEthSrc] |= uint64(bits)
	case 2:
		x.wc[flowtable.WIP] |= uint64(bits) << flowtable.InnerTCIShift
	}
}

// tagged reports whether the frame has a VLAN tag. The megaflow then matches this fact.
func (x *xlate) tagged() bool {
	t := x.tags.tag(0)
	x.lookTag(t, flowtable.VLANPresent)
	return t.tci&flowtable.VLANPresent != 0
}

// syncTags copies the two outermost tags to their bits in x.flow, after a change of x.tags.
func (x *xlate) syncTags() {
	x.flow[flowtable.WEthSrc] = x.flow[flowtable.WEthSrc]&^flowtable.VLANTCI | uint64(x.tags.tag(0).tci)
	x.flow[flowtable.WIP] = x.flow[flowtable.WIP]&^(flowtable.VLANTCI<<flowtable.InnerTCIShift) | uint64(x.tags.tag(1).tci)<<flowtable.InnerTCIShift
	x.dirty = true
}

func (x *xlate) pushTag(tpid, tci uint16) {
	if !x.tags.push(tag{tpid: tpid, tci: tci | flowtable.VLANPresent}) {
		x.halt(packet.DropNoHeadroom)
		return
	}
	x.syncTags()
}

// modTag changes the bits of mask in the outer VLAN tag. It first pushes a tag if the
// frame has none.
func (x *xlate) modTag(v, mask uint16) {
	if !x.tagged() {
		x.pushTag(packet.EtherTypeVLAN, v&mask)
		return
	}
	t := &x.tags.t[0]
	t.tci = t.tci&^mask | v&mask
	t.keep &^= mask
	x.syncTags()
}

// setTCI writes the bits of mask in vlan_tci. If mask contains flowtable.VLANPresent, that bit of v
// decides whether a tag is pushed or popped.
func (x *xlate) setTCI(v, mask uint16) {
	there := x.tagged()
	stays := there
	if mask&flowtable.VLANPresent != 0 {
		stays = v&flowtable.VLANPresent != 0
	}
	switch {
	case there && stays:
		x.modTag(v, mask&^flowtable.VLANPresent)
	case stays:
		x.pushTag(packet.EtherTypeVLAN, v&mask)
	case there:
		x.tags.pop()
		x.syncTags()
	}
}

// commitTags emits the actions that change the frame's tags from x.baseTags to x.tags: as few pops as
// possible, then at most one change of a tag, then pushes.
func (x *xlate) commitTags() {
	if x.tags == x.baseTags {
		return
	}
	var bufBase, bufFlow [maxTags]tag
	base, want := x.baseTags.present(&bufBase), x.tags.present(&bufFlow)
	for len(base) > 0 && len(want) > 0 && base[len(base)-1] == want[len(want)-1] {
		base, want = base[:len(base)-1], want[:len(want)-1]
	}
	change := len(base) > 0 && len(want) > 0 && base[len(base)-1].tpid == want[len(want)-1].tpid
	pops := len(base)
	if change {
		pops--
	}
	for range pops {
		x.emit(flowtable.Action{Op: flowtable.OpPopVLAN})
	}
	for i := len(want) - 1; i >= 0; i-- {
		t := &want[i]
		x.lookTag(t, flowtable.VLANTCI)
		a := flowtable.Action{Op: flowtable.OpPushVLAN, U16: t.tpid, U32: uint32(t.tci &^ flowtable.VLANPresent)}
		if change {
			a.Op, a.U16, change = flowtable.OpSetVLAN, 0, false
		} else if t.tpid == 0 {
			// The end of a clone has restored a tag of the arriving frame. The key does
			// not contain the TPID of this tag.
			a.U16 = packet.EtherTypeVLAN
		}
		x.emit(a)
	}
	x.baseTags = x.tags
}

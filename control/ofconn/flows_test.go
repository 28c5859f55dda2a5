// SPDX-License-Identifier: Apache-2.0

package ofconn

import (
	"bytes"
	"fmt"
	"slices"
	"testing"

	"weft/openflow"
	"weft/openflow/ofp"
	"weft/openflow/ofp/ofptest"
)

// Flow_mods that arrive together are applied together. Each wrong flow_mod is answered
// by its own error, in order. The other flow_mods are in force.
func TestFlowModsInBatches(t *testing.T) {
	for _, v := range []ofp.Version{1, 4, 5, 6} {
		r := newRig(t)
		p := r.connect(v)
		p.write(ofptest.Message(v, 4, 1, uint32(openflow.NiciraVendor), uint32(15), uint64(1)<<56)) // flow_mod_table_id
		p.barrier()
		var all []byte
		for i := range 300 {
			m := flow(t, v, uint32(i), openflow.Add, fmt.Sprintf("table=%d,priority=%d,ip,actions=output:2", 1+i%3, i))
			switch i {
			case 100: // the table of weft-central
				m = flow(t, v, 100, openflow.Add, "table=250,actions=drop")
			case 200:
				m = ofptest.Message(v, 14, 200, uint32(1)) // too short
			}
			all = append(all, m...)
		}
		p.write(all)
		var xids []uint32
		for _, m := range p.barrier() {
			_, _, xid := errorOf(t, m)
			xids = append(xids, xid)
		}
		if !slices.Equal(xids, []uint32{100, 200}) || r.sw.flows() != 298 {
			t.Errorf("version %d: errors of %v, %d flows", v, xids, r.sw.flows())
		}
		if len(r.sw.batches) > 200 {
			t.Errorf("version %d: %d batches", v, len(r.sw.batches))
		}
	}
}

// A dump has every flow once, in messages of at most 64 KiB.
func TestFlowStats(t *testing.T) {
	r := newRig(t)
	p := r.connect(openflow.Version13)
	var all []byte
	const flows = 2000
	for i := range flows {
		all = append(all, flow(t, p.v, uint32(i), openflow.Add, fmt.Sprintf("table=1,priority=%d,ip,actions=output:2", i))...)
	}
	p.write(all)
	p.barrier()
	p.write(ofptest.Message(p.v, 18, 8, uint16(1), uint16(0), uint32(0), uint8(0xff), []byte{0, 0, 0}, uint32(0xffffffff), uint32(0xffffffff),
		uint32(0), uint64(0), uint64(0), uint16(1), uint16(4), uint32(0)))
	seen := 0
	for more := true; more; {
		m := p.read()
		more = m[11]&1 != 0
		for b := m[16:]; len(b) > 0; seen++ {
			b = b[int(b[0])<<8|int(b[1]):]
		}
	}
	if seen != flows {
		t.Errorf("%d flows, want %d", seen, flows)
	}
}

// Statistics show the flags of the add as Open vSwitch does: an add of OpenFlow 1.0 resets the
// counters, and later versions show that as a flag.
func TestStatisticsShowFlagsOfTheAdd(t *testing.T) {
	r := newRig(t)
	for i, add := range []struct {
		version ofp.Version
		words   string
		want    openflow.Flags
	}{
		{1, "", openflow.ResetCounts},
		{1, "check_overlap,", openflow.ResetCounts | openflow.CheckOverlap},
		{4, "", 0},
		{4, "check_overlap,send_flow_rem,", openflow.CheckOverlap | openflow.SendFlowRem},
		{6, "reset_counts,", openflow.ResetCounts},
	} {
		writer := r.connect(add.version)
		writer.write(flow(t, add.version, 1, openflow.Add, fmt.Sprintf("%spriority=%d,ip,actions=output:2", add.words, 100-i)))
		writer.barrier()
		p := r.connect(openflow.Version13)
		p.write(ofptest.Message(p.v, 18, 8, uint16(1), uint16(0), uint32(0), uint8(0), []byte{0, 0, 0}, uint32(0xffffffff), uint32(0xffffffff),
			uint32(0), uint64(0), uint64(0), uint16(1), uint16(4), uint32(0)))
		entries := p.barrier()[0][16:]
		entry := entries[len(entries)/(i+1)*i:]
		if got := openflow.Flags(entry[18])<<8 | openflow.Flags(entry[19]); got != add.want {
			t.Errorf("OpenFlow %d, %q: flags %#x, want %#x", add.version, add.words, got, add.want)
		}
	}
}

// Bundles follow the order of their messages and their flags. A bundle is applied
// completely or not at all.
func TestBundles(t *testing.T) {
	const flags = ofp.BundleAtomic | ofp.BundleOrdered
	control := func(kind ofp.BundleType, flags uint16) []byte {
		return ofptest.Message(openflow.Version14, 33, 2, uint32(1), uint16(kind), flags)
	}
	add := func(inner []byte) []byte {
		return ofptest.Message(openflow.Version14, 34, 2, uint32(1), uint16(0), uint16(flags), inner)
	}
	mod := func(text string) []byte { return add(flow(t, openflow.Version14, 2, openflow.Add, text)) }
	open, commit := control(ofp.BundleOpen, flags), control(ofp.BundleCommit, flags)
	for name, c := range map[string]struct {
		messages [][]byte
		errors   []string
		flows    int
	}{
		"applied":       {[][]byte{open, mod("actions=drop"), mod("table=1,actions=drop"), control(ofp.BundleClose, flags), commit}, nil, 2},
		"without close": {[][]byte{open, mod("actions=drop"), commit}, nil, 1},
		"without open":  {[][]byte{mod("actions=drop"), commit}, nil, 1},
		"discarded":     {[][]byte{open, mod("actions=drop"), control(ofp.BundleDiscard, flags)}, nil, 0},
		"refused":       {[][]byte{open, mod("actions=drop"), mod("actions=group:9"), commit}, []string{"2.9", "17.13"}, 0},
		"unknown":       {[][]byte{commit}, []string{"17.2"}, 0},
		"twice":         {[][]byte{open, open}, []string{"17.3"}, 0},
		"closed":        {[][]byte{open, control(ofp.BundleClose, flags), mod("actions=drop")}, []string{"17.4"}, 0},
		"other flags":   {[][]byte{open, control(ofp.BundleCommit, 1)}, []string{"17.7"}, 0},
		"other xid":     {[][]byte{open, add(flow(t, openflow.Version14, 3, openflow.Add, "actions=drop")), commit}, []string{"17.9"}, 0},
		"not a change":  {[][]byte{open, add(ofptest.Message(openflow.Version14, ofp.TypeEchoRequest, 2)), commit}, []string{"17.10"}, 0},
		"cut off":       {[][]byte{open, add([]byte{5, 14, 0, 200, 0, 0, 0, 2}), commit}, []string{"17.8"}, 0},
	} {
		r := newRig(t)
		p := r.connect(openflow.Version14)
		p.write(bytes.Join(c.messages, nil))
		var errs []string
		for _, m := range p.barrier() {
			if m[1] == ofp.TypeError {
				kind, code, _ := errorOf(t, m)
				errs = append(errs, fmt.Sprintf("%d.%d", kind, code))
			}
		}
		if !slices.Equal(errs, c.errors) || r.sw.flows() != c.flows {
			t.Errorf("%s: errors %v and %d flows, want %v and %d", name, errs, r.sw.flows(), c.errors, c.flows)
		}
	}
}

// Each packet_out of a bundle sees the changes before it, and none behind it. No frame is
// sent, and nothing changes, if a change or a frame is refused.
func TestBundlesSendFrames(t *testing.T) {
	const flags = ofp.BundleAtomic | ofp.BundleOrdered
	const v = openflow.Version14
	add := func(inner []byte) []byte {
		return ofptest.Message(v, 34, 2, uint32(1), uint16(0), uint16(flags), inner)
	}
	mod := func(text string) []byte { return add(flow(t, v, 2, openflow.Add, text)) }
	out := func(frame string) []byte {
		return add(ofptest.Message(v, 13, 2, ^uint32(0), uint32(0xfffffffd), uint16(0), []byte{0, 0, 0, 0, 0, 0}, []byte(frame)))
	}
	commit := ofptest.Message(v, 33, 2, uint32(1), uint16(ofp.BundleCommit), uint16(flags))
	first, second := "\x02\x00\x00\x00\x00\x01\x02\x00\x00\x00\x00\x02\x12\x34", "\x02\x00\x00\x00\x00\x03\x02\x00\x00\x00\x00\x04\x12\x34"
	tooMany := append([][]byte(nil), slices.Repeat([][]byte{out(first)}, maxBundleFrames+1)...)
	for name, c := range map[string]struct {
		messages [][]byte
		errors   []string
		sent     []sentFrame
	}{
		"alone":               {[][]byte{out(first), out(second), commit}, nil, []sentFrame{{first, 0}, {second, 0}}},
		"after changes":       {[][]byte{mod("actions=drop"), out(first), commit}, nil, []sentFrame{{first, 1}}},
		"before a change":     {[][]byte{out(first), mod("actions=drop"), out(second), mod("actions=group:9"), commit}, []string{"2.9", "17.13"}, nil},
		"between changes":     {[][]byte{out(first), mod("actions=drop"), out(second), mod("in_port=1,actions=drop"), out(first), commit}, nil, []sentFrame{{first, 0}, {second, 1}, {first, 2}}},
		"of a refused bundle": {[][]byte{mod("actions=group:9"), out(first), commit}, []string{"2.9", "17.13"}, nil},
		"a refused frame":     {[][]byte{mod("actions=drop"), out("short"), out(first), commit}, []string{"1.6", "17.13"}, nil},
		"too many":            {tooMany, []string{"17.12"}, nil},
	} {
		r := newRig(t)
		p := r.connect(v)
		p.write(bytes.Join(c.messages, nil))
		var errs []string
		for _, m := range p.barrier() {
			if m[1] == ofp.TypeError {
				kind, code, _ := errorOf(t, m)
				errs = append(errs, fmt.Sprintf("%d.%d", kind, code))
			}
		}
		if !slices.Equal(errs, c.errors) || !slices.Equal(r.sw.frames, c.sent) {
			t.Errorf("%s: errors %v and sent %v, want %v and %v", name, errs, r.sw.frames, c.errors, c.sent)
		}
	}
}

// Buckets are inserted and removed at the given positions of a group.
func TestBuckets(t *testing.T) {
	r := newRig(t)
	p := r.connect(openflow.Version15)
	bucket := func(id uint32) []byte {
		b := ofptest.Message(0, 0, 0, uint32(0))[8:]
		b[1] = 8
		return append(b, byte(id>>24), byte(id>>16), byte(id>>8), byte(id))
	}
	change := func(command uint16, index uint32, ids ...uint32) []byte {
		var buckets []byte
		for _, id := range ids {
			buckets = append(buckets, bucket(id)...)
		}
		return ofptest.Message(p.v, 15, 4, command, uint8(0), uint8(0), uint32(1), uint16(len(buckets)), uint16(0), index, buckets)
	}
	const first, last, all = ofp.BucketFirst, ofp.BucketLast, ofp.BucketAll
	for _, c := range []struct {
		m    []byte
		want []uint32
		err  string
	}{
		{change(0, all, 5, 6), []uint32{5, 6}, ""},
		{change(3, first, 1), []uint32{1, 5, 6}, ""},
		{change(3, last, 9), []uint32{1, 5, 6, 9}, ""},
		{change(3, 5, 7), []uint32{1, 5, 7, 6, 9}, ""},
		{change(3, last, 7), []uint32{1, 5, 7, 6, 9}, "6.16"},
		{change(3, 77, 8), []uint32{1, 5, 7, 6, 9}, "6.15"},
		{change(5, 7), []uint32{1, 5, 6, 9}, ""},
		{change(5, first), []uint32{5, 6, 9}, ""},
		{change(5, last), []uint32{5, 6}, ""},
		{change(5, 77), []uint32{5, 6}, "6.15"},
		{change(5, all), nil, ""},
	} {
		p.write(c.m)
		err := ""
		for _, m := range p.barrier() {
			kind, code, _ := errorOf(t, m)
			err = fmt.Sprintf("%d.%d", kind, code)
		}
		var got []uint32
		for _, b := range r.sw.Groups(1)[0].Buckets {
			got = append(got, b.ID)
		}
		if !slices.Equal(got, c.want) || err != c.err {
			t.Errorf("% x: buckets %v, error %q; want %v, %q", c.m, got, err, c.want, c.err)
		}
	}
}

// SPDX-License-Identifier: Apache-2.0

package ofconn

import (
	"bytes"
	"fmt"
	"slices"
	"testing"

	"weft/openflow"
	"weft/openflow/ofp"
)

// Flow_mods and barriers that arrive together are applied together, and answered in
// their order.
func TestBarriersInBatches(t *testing.T) {
	for _, v := range []ofp.Version{openflow.Version10, openflow.Version13} {
		r := newRig(t)
		p := r.connect(v)
		barrier := func(xid uint32) []byte {
			b := ofp.AppendBarrierReply(nil, v, xid)
			b[1] = barrierType(v)
			return b
		}
		p.write(slices.Concat(flow(t, v, 1, openflow.Add, "in_port=1,actions=2"), barrier(2), flow(t, v, 3, openflow.Add, "in_port=2,actions=2"),
			flow(t, v, 4, openflow.Add, "check_overlap,actions=3"), barrier(5), barrier(6), flow(t, v, 7, openflow.Add, "in_port=3,actions=2"), barrier(8)))
		var answers []string
		for range 5 {
			h := ofp.ReadHeader(p.read())
			answers = append(answers, fmt.Sprint(h.XID, " ", h.Type == ofp.TypeError))
		}
		if want := []string{"2 false", "4 true", "5 false", "6 false", "8 false"}; !slices.Equal(answers, want) {
			t.Errorf("version %d: answers %q, want %q", v, answers, want)
		}
		r.sw.mu.Lock()
		batches := r.sw.batches
		r.sw.mu.Unlock()
		if !slices.Equal(batches, []int{4}) || r.sw.flows() != 3 {
			t.Errorf("version %d: flow_mods in batches of %v, %d flows; want one batch and 3 flows", v, batches, r.sw.flows())
		}
	}
}

// One write sends several waiting events, together at most maxEventWrite bytes. A
// larger event has a write of its own.
func TestEventsShareWrites(t *testing.T) {
	var events []event
	var all []byte
	for i, size := range []int{10, 20, maxEventWrite, 5, maxEventWrite - 5, 1, maxEventWrite + 9, 3} {
		m := bytes.Repeat([]byte{byte(i)}, size)
		events, all = append(events, event{encode: func() []byte { return m }, bytes: size}), append(all, m...)
	}
	var sizes []int
	var sent []byte
	for len(events) > 0 {
		var joined []byte
		var counted int
		if joined, counted, events = joinEvents(nil, events); counted != len(joined) {
			t.Errorf("a write of %d bytes counts as %d", len(joined), counted)
		}
		sizes, sent = append(sizes, len(joined)), append(sent, joined...)
	}
	if want := []int{30, maxEventWrite, maxEventWrite, 1, maxEventWrite + 9, 3}; !slices.Equal(sizes, want) || !bytes.Equal(sent, all) {
		t.Errorf("writes of %v bytes, want %v", sizes, want)
	}
}

// SPDX-License-Identifier: Apache-2.0

package ofconn

import (
	"encoding/binary"
	"testing"

	"weft/openflow"
	"weft/openflow/ofp"
	"weft/openflow/ofp/ofptest"
	"weft/openflow/ofproto"
)

// Controllers read and change how the switch treats fragments, as ovs-ofctl get-frags and set-frags
// do. Reassembly is refused, with an error from OpenFlow 1.1 on.
func TestTreatmentOfFragments(t *testing.T) {
	r := newRig(t)
	first := r.connect(openflow.Version13)
	for _, mode := range []ofproto.Fragments{ofproto.FragmentsNXMatch, ofproto.FragmentsDrop, ofproto.FragmentsNormal} {
		first.write(ofptest.Message(first.v, 9, 1, uint16(mode), uint16(64)))
		first.write(ofptest.Message(first.v, 20, 2)) // barrier
		if m := first.read(); m[1] != 21 {
			t.Fatalf("message %d, want a barrier's reply", m[1])
		}
		second := r.connect(openflow.Version10)
		second.write(ofptest.Message(second.v, 7, 1))
		m := second.read()
		if got := binary.BigEndian.Uint16(m[8:]); m[1] != ofp.TypeConfig || got != uint16(mode) {
			t.Errorf("message %d with flags %d, want %d", m[1], got, mode)
		}
	}
	first.write(ofptest.Message(first.v, 9, 3, uint16(2), uint16(64)))
	if m := first.read(); m[1] != 1 || binary.BigEndian.Uint16(m[8:]) != 10 || binary.BigEndian.Uint16(m[10:]) != 0 {
		t.Errorf("set_config with reassembly: % x, want OFPSCFC_BAD_FLAGS", m)
	}
}

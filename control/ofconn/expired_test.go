// SPDX-License-Identifier: Apache-2.0

package ofconn

import (
	"encoding/binary"
	"testing"

	"weft/openflow"
	"weft/openflow/ofp"
	"weft/openflow/ofp/ofptest"
)

// A controller of OpenFlow 1.0 asks with a flag of set_config for frames whose TTL has
// expired, as ovs-ofctl monitor invalid_ttl does, and reads the flag back.
func TestExpiredFramesByFlag(t *testing.T) {
	var expired bool
	r := newRig(t, func(s *Setup) { s.Frames = func(_, _, wanted bool) { expired = wanted } })
	p := r.connect(openflow.Version10)
	for _, flags := range []uint16{flagInvalidTTL, 0, flagInvalidTTL} {
		p.write(ofptest.Message(p.v, 9, 1, flags, uint16(64)))
		p.write(ofptest.Message(p.v, 7, 2))
		p.write(ofptest.Message(p.v, 18, 3)) // barrier
		m := p.read()
		if got := binary.BigEndian.Uint16(m[8:]); m[1] != ofp.TypeConfig || got != flags {
			t.Errorf("after set_config %d: message %d with flags %d, want %d", flags, m[1], got, flags)
		}
		if m := p.read(); m[1] != 19 {
			t.Errorf("message %d, want a barrier's reply", m[1])
		}
		if expired != (flags != 0) {
			t.Errorf("after set_config %d: frames with an expired TTL wanted: %t", flags, expired)
		}
	}
	r.service.SendPacketIn(&ofp.PacketIn{Frame: make([]byte, 60), Total: 60, Reason: ofp.ReasonInvalidTTL}, 1, 0)
	if m := p.read(); m[1] != 10 || m[16] != ofp.ReasonInvalidTTL {
		t.Errorf("message %d, want a packet_in with reason invalid_ttl", m[1])
	}
}

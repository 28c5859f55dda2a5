// SPDX-License-Identifier: Apache-2.0

package ofp

import (
	"net/netip"
	"testing"

	"weft/packet"
)

// ovs-ofctl sends an ICMP identifier, type and code of 0 in the tuple that the command does not
// name. Such a tuple must select every connection.
func TestCTFlushOfICMP(t *testing.T) {
	property := func(kind byte, body ...byte) []byte {
		p := append([]byte{0, kind, 0, byte(4 + len(body))}, body...)
		return append(p, make([]byte, -len(p)&7)...)
	}
	icmp := func(id, kind, code byte) []byte {
		p := append(property(tupleID, 0, id), property(tupleType, kind)...)
		return append(p, property(tupleCode, code)...)
	}
	nested := func(kind byte, parts ...byte) []byte { return property(kind, append(make([]byte, 4), parts...)...) }
	source := property(tupleSrc, append(append(make([]byte, 10), 0xff, 0xff), 10, 1, 1, 2)...)
	body := append([]byte{packet.ProtoICMP}, make([]byte, 7)...)
	body = append(body, nested(ctOrig, append(source, icmp(77, 8, 0)...)...)...)
	body = append(body, nested(ctReply, icmp(0, 0, 0)...)...)
	m, err := DecodeCTFlush(&Request{Body: body})
	if err != nil {
		t.Fatal(err)
	}
	if m.Orig.Src != netip.MustParseAddr("10.1.1.2") || m.Orig.ID == nil || *m.Orig.ID != 77 || *m.Orig.Type != 8 || *m.Orig.Code != 0 {
		t.Errorf("original tuple %+v", m.Orig)
	}
	if m.Reply != (CTTuple{}) {
		t.Errorf("reply tuple %+v, want an empty one", m.Reply)
	}
}

// SPDX-License-Identifier: Apache-2.0

package openflow

import "strings"

// The field packet_type (OpenFlow 1.5, 7.2.3.11) names a frame's outermost header by namespace and type.
// Every frame of Weft is an Ethernet frame, whose type is (0,0). So a match on this type matches every frame,
// and the parsers leave it out. They refuse other types.

// packetTypeHeader is the header of OXM_OF_PACKET_TYPE.
var packetTypeHeader = oxmHeader{class: classOXM, number: 44, length: 4}

// checkPacketType returns an error if the text of packet_type is not (0,0).
func checkPacketType(t token) error {
	space, typ, ok := strings.Cut(strings.TrimSuffix(strings.TrimPrefix(t.value, "("), ")"), ",")
	whole := strings.HasPrefix(t.value, "(") && strings.HasSuffix(t.value, ")")
	if t.value == "*" || ok && whole && isZero(space) && isZero(typ) {
		return nil
	}
	return wrong(t.text, "packet_type=(0,0), as every frame is an Ethernet frame")
}

func isZero(text string) bool {
	v, ok := parseUint(text, 0xffff)
	return ok && v == 0
}

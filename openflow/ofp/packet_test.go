// SPDX-License-Identifier: Apache-2.0

package ofp

import (
	"encoding/binary"
	"testing"
)

// A guest's large frame (TSO) may be longer than a message. A wrong length in the header would
// end the connection of the controller.
func TestPacketInOfLargeFrame(t *testing.T) {
	frame := make([]byte, maxMessageLen)
	for _, format := range []PacketInFormat{PacketInStandard, PacketInNXM, PacketIn2} {
		for _, v := range []Version{v10, v14} {
			for _, n := range []int{65400, 65465, 65480, len(frame)} {
				p := &PacketIn{Frame: frame[:n], Total: n, Continuation: make([]byte, 60)}
				m := AppendPacketIn([]byte{1, 2, 3}, v, format, p)[3:]
				if told := int(binary.BigEndian.Uint16(m[2:])); told != len(m) || told < n-200 {
					t.Errorf("format %d, version %d, %d bytes: a message of %d bytes says %d", format, v, n, len(m), told)
				}
				if len(p.Frame) != n || p.Continuation == nil {
					t.Error("the packet_in of other connections has changed")
				}
			}
		}
	}
}

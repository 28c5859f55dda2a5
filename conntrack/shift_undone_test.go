// SPDX-License-Identifier: Apache-2.0

package conntrack

import (
	"encoding/binary"
	"fmt"
	"testing"

	"weft/packet"
	"weft/packet/packettest"
)

// The partial checksum of a segment is finished before its announcement is rewritten. Otherwise
// a guest could choose a checksum offset beyond the end of the frame, which the rewrite shortens.
func TestShorterThanItsChecksum(t *testing.T) {
	const client, server, text = "100.100.100.1:1000", "10.0.1.1:21", "PORT 100,100,100,1,19,137\r\n"
	const l4 = packet.EthernetLen + packet.IPv4Len
	frame := saying(client, server, tcpAck, 101, 501, text)
	n := len(frame)
	for _, place := range []struct{ start, offset int }{{n - 12, 10}, {n - 4, 2}, {l4, n - l4 - 2}, {l4, 16}} {
		t.Run(fmt.Sprint(place), func(t *testing.T) {
			r := newRig(t, 64)
			req := natTo(NATSrc, "1.1.1.1", "1.1.1.1")
			req.Zone, req.ALG = 1, ALGFTP
			r.control(client, server, server, req)
			r.put(frame)
			f := &r.b.Frames[0]
			f.Offload = packet.Offload{Flags: packet.OffloadPartial, CsumStart: uint16(place.start), CsumOffset: uint16(place.offset)}
			if place.offset == 16 { // the offset of TCP's checksum
				ip := packet.IPv4(f.Header()[packet.EthernetLen:])
				binary.BigEndian.PutUint16(f.Header()[l4+16:], packet.SumIPv4(ip.Src(), ip.Dst(), packet.ProtoTCP, n-l4))
			}
			if reason := r.b.CheckOffload(f); reason != packet.DropNone {
				t.Fatal(reason)
			}
			if m, _ := r.repeat(back); m.Drop != packet.DropNone {
				t.Fatal(m.Drop)
			}
			if f.Len() >= n {
				t.Fatalf("a frame of %d bytes became one of %d", n, f.Len())
			}
			r.b.FinishChecksum(f)
			if place.offset == 16 {
				heard(t, packettest.Bytes(&r.b, f))
			}
		})
	}
}

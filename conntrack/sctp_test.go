// SPDX-License-Identifier: Apache-2.0

package conntrack

import (
	"encoding/binary"
	"hash/crc32"
	"testing"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"
)

// sctpFrame returns an SCTP packet with one chunk and this initiate tag; flags 1 is
// the T bit.
func sctpFrame(src, dst string, kind uint8, tag, initTag uint32, flags ...uint8) []byte {
	a, b := end(src), end(dst)
	ip, _, eth := network(layers.IPProtocolSCTP, a.Addr(), b.Addr())
	body := make([]byte, 32)
	binary.BigEndian.PutUint16(body, a.Port())
	binary.BigEndian.PutUint16(body[2:], b.Port())
	binary.BigEndian.PutUint32(body[4:], tag)
	body[12], body[15] = kind, 20
	if len(flags) > 0 {
		body[13] = flags[0]
	}
	binary.BigEndian.PutUint32(body[16:], initTag)
	binary.LittleEndian.PutUint32(body[8:], crc32.Checksum(body, crc32.MakeTable(crc32.Castagnoli))) // RFC 9260 section 6.8
	return serialize(ethernet(eth), ip, gopacket.Payload(body))
}

const (
	chunkData      = 0 // RFC 9260 section 3.2
	chunkHeartbeat = 4
)

// An association goes from INIT to SHUTDOWN COMPLETE, and a new one uses the same
// ports. Wrong verification tags are invalid (RFC 9260 section 8.5).
func TestSCTPStates(t *testing.T) {
	for _, ends := range [][2]string{{guest, server}, {guest6, srv6}} {
		r := newRig(t, 64)
		a, b := ends[0], ends[1]
		const tagA, tagB = 7, 9 // tags of packets to a and to b
		const reply, est = Reply, Tracked | Established
		for i, s := range []struct {
			frame []byte
			state uint8
			class Class
		}{
			{sctpFrame(a, b, chunkInit, 1, tagA), Tracked | Invalid, 0},
			{sctpFrame(a, b, chunkInit, 0, 0), Tracked | Invalid, 0},
			{sctpFrame(a, b, chunkInitAck, tagB, 1), Tracked | Invalid, 0},
			{sctpFrame(a, b, chunkInit, 0, tagA), Tracked | New, sctpInit},
			{sctpFrame(a, b, chunkInit, 0, tagA), Tracked | New, sctpInit},
			{sctpFrame(b, a, chunkInitAck, tagA+1, tagB), Tracked | Invalid, sctpInit},
			{sctpFrame(b, a, chunkInitAck, tagA, tagB), est | reply, sctpInit},
			{sctpFrame(b, a, chunkCookieAck, tagA, 1), Tracked | Invalid, sctpInit},
			{sctpFrame(a, b, chunkCookieEcho, tagB, 1), est, sctpInit},
			{sctpFrame(b, a, chunkCookieAck, tagA, 1), est | reply, sctpEstablished},
			{sctpFrame(a, b, chunkData, tagB, 1), est, sctpEstablished},
			{sctpFrame(a, b, chunkData, tagA, 1), Tracked | Invalid, sctpEstablished},
			{sctpFrame(b, a, chunkHeartbeat, tagA, 1), est | reply, sctpEstablished},
			{sctpFrame(b, a, chunkAbort, 1234, 1), Tracked | Invalid, sctpEstablished},
			{sctpFrame(a, b, chunkShutdown, tagB, 1), est, sctpShutdown},
			{sctpFrame(b, a, chunkShutdownAck, tagA, 1), est | reply, sctpShutdown},
			{sctpFrame(a, b, chunkShutdownComplete, tagA, 1, 1), est, sctpShutdown},
			{sctpFrame(a, b, chunkInit, 0, tagA+5), Tracked | New, sctpInit},
		} {
			m, _ := r.send(s.frame, commit)
			if m.State != s.state {
				t.Fatalf("%s, packet %d: ct_state %s, want %s", a, i, stateText(m.State), stateText(s.state))
			}
			if m.Ref.Generation != 0 {
				if c := r.tr.conns[m.Ref.Number].class; c != s.class && s.state&Invalid == 0 {
					t.Fatalf("%s, packet %d: timeout %v, expected %v", a, i, c, s.class)
				}
			}
		}
		if n := r.tr.Count(); n != 1 {
			t.Fatalf("unexpected number of associations: %d", n)
		}
		check(t, r.tr.Table)
	}
}

// NAT translates the addresses and ports of an association and updates its checksum.
func TestSCTPNAT(t *testing.T) {
	r := newRig(t, 64)
	req := natTo(NATSrc, "192.0.2.1", "192.0.2.1", 5000, 5000)
	out := r.expect(sctpFrame(guest, server, chunkInit, 0, 7), req, Tracked|New|SNAT)
	sameBytes(t, out, sctpFrame("192.0.2.1:5000", server, chunkInit, 0, 7))
	out = r.expect(sctpFrame(server, "192.0.2.1:5000", chunkInitAck, 7, 9), bare, Tracked|Established|Reply|DNAT)
	sameBytes(t, out, sctpFrame(server, guest, chunkInitAck, 7, 9))
}

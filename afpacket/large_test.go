// SPDX-License-Identifier: Apache-2.0

package afpacket

import (
	"bytes"
	"encoding/binary"
	"testing"
	"time"

	"weft/packet"
	"weft/packet/packettest"
	"weft/port"
	"weft/tunnel"
)

// largeFrame returns a TCP frame with n bytes of payload, an unfinished checksum and segments of size
// bytes.
func largeFrame(b *packet.Batch, a *packettest.Arena, n, size int) *packet.Frame {
	const headers = 14 + 20 + 20
	data := make([]byte, headers+n)
	for i := range data[headers:] {
		data[headers+i] = byte(i * 7 >> 3)
	}
	copy(data, []byte{2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0})
	ip := packet.IPv4(data[14:34])
	copy(ip, []byte{0x45, 0, 0, 0, 0, 9, 0x40, 0, 64, packet.ProtoTCP, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2})
	ip.SetTotalLen(40 + n)
	ip.SetChecksum(packet.Checksum(ip))
	tcp := data[34:headers]
	copy(tcp, []byte{1, 2, 3, 4, 0, 0, 1, 0, 0, 0, 2, 0, 0x50, 0x10, 9, 9})
	binary.BigEndian.PutUint16(tcp[16:], packet.SumIPv4(ip.Src(), ip.Dst(), packet.ProtoTCP, 20+n))
	f := a.Add(b, data, 128, 0)
	f.L3, f.L4, f.Proto = 14, 34, packet.ProtoTCP
	f.Offload = packet.Offload{GSO: packet.GSOTCPv4, Flags: packet.OffloadPartial, Size: uint16(size), CsumStart: 34, CsumOffset: 16}
	return f
}

// A large tunnelled frame arrives as one frame and unchanged. It is sent over IPv4 and IPv6, through
// the feeder (a tap for large frames) or as a train of datagrams, in VXLAN or in Geneve with options.
func TestLargeFrames(t *testing.T) {
	r := newRig(t)
	if whole, reason := r.up[0].Whole(); !whole {
		t.Fatalf("a veth has no feeder: %s", reason)
	}
	feeder := r.dev[0].Tx()[0].(*txQueue).feeder
	a := packettest.NewArena(t, 1<<18)
	geneve := true
	for _, v6 := range []bool{false, true} {
		for _, fd := range []int{feeder, feeder, -1, -1} {
			geneve = !geneve
			q := r.dev[0].Tx()[0].(*txQueue)
			q.feeder = fd
			tmpl, fields := r.template(v6), new(tunnel.Fields)
			if geneve {
				tmpl.Kind = tunnel.KindGeneve
				copy(tmpl.Header[tmpl.Encap:], []byte{0, 0, 0x65, 0x58})
				fields.Options.Set(bytes.Repeat([]byte{1, 2, 3, 0}, 13))
			}
			b := new(packet.Batch)
			a.Reset()
			var want [][]byte
			for _, n := range []int{1401, 14000, 60000, 2800} {
				f := largeFrame(b, a, n, 1400)
				want = append(want, packettest.Bytes(b, f))
				if reason := tmpl.Push(f, 5, 0, 0, fields); reason != packet.DropNone {
					t.Fatal(reason)
				}
			}
			if n := q.Send(b, inOrder[:b.N]); n != b.N {
				t.Fatalf("Send took %d of %d frames", n, b.N)
			}
			for i, got := range r.receiveLarge(t, r.dev[1].Rx()[0], len(want), int(fields.Options.Len)) {
				if !bytes.Equal(got, want[i]) {
					t.Errorf("IPv6 %v, Geneve %v, feeder %d: frame %d of %d bytes differs from what was sent, of %d bytes", v6, geneve, fd, i, len(got), len(want[i]))
				}
			}
		}
	}
}

func (r *rig) receiveLarge(t *testing.T, rx port.Rx, n, options int) (frames [][]byte) {
	t.Helper()
	b := new(packet.Batch)
	for end := time.Now().Add(30 * time.Second); len(frames) < n && time.Now().Before(end); {
		b.Reset()
		if rx.Recv(b) < 0 {
			t.Fatal(rx.Fault())
		}
		for i := range b.Frames[:b.N] {
			f := &b.Frames[i]
			if f.Offload.GSO != packet.GSOTCPv4 || f.Offload.Size != 1400 || f.Drop != packet.DropNone {
				t.Fatalf("not the large frame sent: %d bytes, offload %+v, drop %v", f.Len(), f.Offload, f.Drop)
			}
			outer := 14 + 20 + 8 + 8 + options
			if f.Header()[14]>>4 == 6 {
				outer += 20
			}
			frames = append(frames, packettest.Bytes(b, f)[outer:])
		}
		rx.Release()
	}
	if len(frames) != n {
		t.Fatalf("%d of %d frames arrived", len(frames), n)
	}
	return frames
}

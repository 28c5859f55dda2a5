// SPDX-License-Identifier: Apache-2.0

package vhost_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"testing"

	"weft/packet"
	"weft/vhost"
	"weft/vhost/vhosttest"
)

const offloadBits = vhost.FeatureChecksum | vhost.FeatureGuestChecksum |
	vhost.FeatureGuestTSO4 | vhost.FeatureGuestTSO6 | vhost.FeatureGuestECN |
	vhost.FeatureHostTSO4 | vhost.FeatureHostTSO6 | vhost.FeatureHostECN |
	vhost.FeatureGuestUSO4 | vhost.FeatureGuestUSO6 | vhost.FeatureHostUSO

func vnet(size int) (h [12]byte) {
	h[0], h[1] = 1, 1
	binary.LittleEndian.PutUint16(h[2:], 54)
	binary.LittleEndian.PutUint16(h[4:], uint16(size))
	binary.LittleEndian.PutUint16(h[6:], 34)
	binary.LittleEndian.PutUint16(h[8:], 16)
	return h
}

// largeFrame returns a TCP frame with 54 bytes of headers and n bytes of random payload. vnet returns
// the virtio-net header that fits it.
func largeFrame(n int) []byte {
	f := random(1, 54+n)
	copy(f[12:], []byte{8, 0, 0x45, 0, byte((40 + n) >> 8), byte(40 + n), 0, 1, 0x40, 0, 64, packet.ProtoTCP})
	f[46], f[47] = 0x50, 0x10
	return f
}

// A frame with an unfinished checksum and large segments arrives unchanged at a guest that accepts
// such frames, with all kinds of rings and chains.
func TestLargeFrames(t *testing.T) {
	for _, packed := range []uint64{0, vhost.FeatureRingPacked} {
		for _, layout := range vhosttest.Layouts {
			for _, n := range []int{3000, 20000, 65400} {
				t.Run(fmt.Sprintf("%x/%s/%d", packed, layout, n), func(t *testing.T) {
					features := vhost.FeatureVersion1 | offloadBits | packed
					from := guest(t, vhosttest.Options{Features: features, BufLen: 66000, Num: 64, Layout: layout})
					// One guest has big buffers, the other small mergeable ones.
					big := guest(t, vhosttest.Options{Features: features, BufLen: 66000, Num: 64, Layout: layout})
					small := guest(t, vhosttest.Options{Features: features | vhost.FeatureMergeable, BufLen: 1536, Num: 512, Layout: layout})
					in := open(t, from, nil)
					for _, to := range []*vhosttest.Guest{big, small} {
						out := open(t, to, func(s *vhost.DeviceSpec) { s.MTU = 1500 })
						if out.Tx()[0].Offloads() != packet.TakesAll {
							t.Fatalf("takes %#x", out.Tx()[0].Offloads())
						}
						to.Rx[0].Refill()
						to.Rx[0].Publish()
						frame, header := largeFrame(n), vnet(1448)
						from.Tx[0].SendHeaded(header, frame)
						from.Tx[0].Publish()
						carry(t, in, out)
						got, h, ok := to.Rx[0].Recv(nil)
						if !ok || !bytes.Equal(got, frame) || !bytes.Equal(h[:10], header[:10]) {
							t.Fatalf("%v, %d bytes with header %x, want %d with %x", ok, len(got), h, len(frame), header)
						}
					}
				})
			}
		}
	}
}

// carry forwards frames with offloads from one device to another. In between, it sets the header
// offsets and checks the offloads, as the datapath does.
func carry(t *testing.T, from, to *vhost.Device) packet.DropReason {
	t.Helper()
	b := new(packet.Batch)
	if n := from.Rx()[0].Recv(b); n != 1 {
		t.Fatalf("%d frames: %s", n, from.Rx()[0].Fault())
	}
	f := &b.Frames[0]
	f.L3, f.L4, f.Proto = 14, 34, packet.ProtoTCP // as the parser sets them
	if f.Drop == packet.DropNone {
		f.Drop = b.CheckOffload(f)
	}
	if f.Drop == packet.DropNone && to.Tx()[0].Send(b, allOffloads[:1]) != 1 {
		t.Fatal("not taken")
	}
	to.Tx()[0].Flush()
	from.Rx()[0].Release()
	return f.Drop
}

// A frame is dropped if it needs an offload that the receiving guest has not negotiated.
func TestOffloadsNotNegotiated(t *testing.T) {
	for _, c := range []struct {
		features uint64
		want     packet.DropReason
	}{
		{vhost.FeatureChecksum | vhost.FeatureHostTSO4, packet.DropNone},
		{vhost.FeatureChecksum, packet.DropBadOffload},
		{vhost.FeatureChecksum | vhost.FeatureHostTSO6, packet.DropBadOffload},
		{vhost.FeatureGuestChecksum | vhost.FeatureGuestTSO4, packet.DropNone},
	} {
		g := guest(t, vhosttest.Options{Features: vhost.FeatureVersion1 | c.features, BufLen: 8000})
		sink := guest(t, vhosttest.Options{Features: vhost.FeatureVersion1 | offloadBits, BufLen: 8000})
		in, out := open(t, g, nil), open(t, sink, nil)
		sink.Rx[0].Refill()
		sink.Rx[0].Publish()
		g.Tx[0].SendHeaded(vnet(1000), largeFrame(3000))
		g.Tx[0].Publish()
		if reason := carry(t, in, out); reason != c.want {
			t.Errorf("features %#x: %v, want %v", c.features, reason, c.want)
		}
	}
}

// If a guest lacks VIRTIO_NET_F_GUEST_CSUM, its frames' virtio-net headers must not even say that a
// checksum is valid.
func TestOffloadsOfReceiver(t *testing.T) {
	for features, want := range map[uint64]packet.Offloads{
		0:                          0,
		vhost.FeatureGuestTSO4:     0,
		vhost.FeatureGuestChecksum: packet.TakesPartial,
		vhost.FeatureGuestChecksum | vhost.FeatureGuestTSO4 | vhost.FeatureGuestECN: packet.TakesPartial | packet.TakesTCPv4 | packet.TakesECN,
		vhost.FeatureGuestChecksum | vhost.FeatureGuestUSO4:                         packet.TakesPartial,
		vhost.FeatureGuestChecksum | vhost.FeatureGuestUSO4 | vhost.FeatureGuestUSO6 | vhost.FeatureGuestTSO6: packet.TakesPartial |
			packet.TakesUDP | packet.TakesTCPv6,
	} {
		g := guest(t, vhosttest.Options{Features: vhost.FeatureVersion1 | features})
		d := open(t, g, nil)
		if got := d.Tx()[0].Offloads(); got != want {
			t.Errorf("features %#x take %#x, want %#x", features, got, want)
		}
		g.Rx[0].Refill()
		g.Rx[0].Publish()
		b := new(packet.Batch)
		f, head := b.Next()
		copy(head[:], largeFrame(60))
		f.Offload.Flags = packet.OffloadValid
		b.Commit(f, 114)
		d.Tx()[0].Send(b, allOffloads[:1])
		d.Tx()[0].Flush()
		if _, h, ok := g.Rx[0].Recv(nil); !ok || (h[0] == 2) != (want != 0) {
			t.Errorf("features %#x: header %x", features, h)
		}
	}
}

// SPDX-License-Identifier: Apache-2.0

package afpacket

import (
	"errors"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"weft/internal/testnet"
	"weft/packet"
	"weft/port"
	"weft/port/porttest"
)

// Kinds of segmentation in a virtio-net header (include/uapi/linux/virtio_net.h).
const gsoNone, gsoUFO = 0, 3

// A frame may use a kind of segmentation for which the virtio-net header has no code. Without a ring,
// the frame is dropped and counted. With a ring, some kernels leave the slot's bit set. The ring then
// stops, and Check reports it.
func TestUnknownSegmentation(t *testing.T) {
	for _, cfg := range []Config{{Dev: "t0", NoRing: "asked for"}, {Dev: "t0", Slots: 64}} {
		testnet.New(t).Do(func() {
			tap := newTapUplink(t, cfg)
			tap.write(t, gsoNone)
			if n, drop := tap.receive(t); n != 1 || drop != packet.DropNone {
				t.Fatalf("%d frames, drop %v: want one frame", n, drop)
			}
			tap.write(t, gsoUFO)
			n, drop := tap.receive(t)
			if cfg.Slots == 0 {
				if n != 1 || drop != packet.DropBadOffload {
					t.Fatalf("%d frames, drop %v: want one as bad-offload", n, drop)
				}
				tap.write(t, gsoNone)
				if n, drop := tap.receive(t); n != 1 || drop != packet.DropNone || tap.up.Check() != nil {
					t.Fatalf("%d frames, drop %v: want one frame after one of an unknown kind", n, drop)
				}
				return
			}
			if n != 0 {
				t.Fatalf("%d frames from a ring: want none", n)
			}
			tap.up.Check()
			tap.write(t, gsoNone)
			n, _ = tap.receive(t)
			if err := tap.up.Check(); (n == 0) != errors.Is(err, ErrStopped) {
				t.Fatalf("Check returned %v, and %d frames of 1 arrived", err, n)
			}
		})
	}
}

// While the engine stands still, its ring is full. Check does not report such a ring as stopped.
func TestCheckOfFullRing(t *testing.T) {
	testnet.New(t).Do(func() {
		tap := newTapUplink(t, Config{Dev: "t0", Slots: 64})
		for range 100 {
			tap.write(t, gsoNone)
		}
		if err := tap.up.Check(); err != nil || tap.up.Dropped() != 36 {
			t.Fatalf("Check returned %v with %d frames dropped, want 36", err, tap.up.Dropped())
		}
		for range 10 {
			tap.write(t, gsoNone)
		}
		if err := tap.up.Check(); err != nil || tap.up.Dropped() != 46 {
			t.Fatalf("Check returned %v with %d frames dropped, want 46", err, tap.up.Dropped())
		}
	})
}

// tapUplink is an uplink on a tap, to which the test writes frames.
type tapUplink struct {
	fd  int
	up  *Uplink
	dev port.Device
}

func newTapUplink(t testing.TB, cfg Config) *tapUplink {
	t.Helper()
	check := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	u := new(tapUplink)
	var err error
	u.fd, err = unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	check(err)
	t.Cleanup(func() { unix.Close(u.fd) })
	req, err := unix.NewIfreq(cfg.Dev)
	check(err)
	req.SetUint16(unix.IFF_TAP | unix.IFF_NO_PI | unix.IFF_VNET_HDR)
	check(unix.IoctlIfreq(u.fd, unix.TUNSETIFF, req))
	req.SetUint16(unix.IFF_UP)
	s, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	check(err)
	defer unix.Close(s)
	check(unix.IoctlIfreq(s, unix.SIOCSIFFLAGS, req))
	addr, err := unix.NewIfreq(cfg.Dev)
	check(err)
	check(addr.SetInet4Addr([]byte{10, 9, 0, 2}))
	check(unix.IoctlIfreq(s, unix.SIOCSIFADDR, addr))
	u.up, err = Setup(cfg)
	check(err)
	t.Cleanup(u.up.Close)
	check(u.up.SetEndpoints([]netip.AddrPort{netip.MustParseAddrPort("10.9.0.2:4789")}))
	text, err := u.up.Spec()
	check(err)
	u.dev, err = Open(text, porttest.Duplicates(t, u.up.FDs()))
	check(err)
	t.Cleanup(u.dev.Close)
	return u
}

// write writes a datagram to the endpoint. gso is its kind of segmentation in the
// virtio-net header.
func (u *tapUplink) write(t testing.TB, gso byte) {
	t.Helper()
	const payload = 192
	f := make([]byte, packet.VnetLen+14+20+8+payload)
	if gso != gsoNone {
		copy(f, []byte{1, gso, 42, 0, 96, 0, 34, 0, 6, 0}) // unfinished checksum, 96 bytes a segment
	}
	h := f[packet.VnetLen:]
	copy(h, []byte{2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0})
	ip := packet.IPv4(h[14:34])
	copy(ip, []byte{0x45, 0, 0, 0, 0, 9, 0x40, 0, 64, packet.ProtoUDP, 0, 0, 10, 9, 0, 1, 10, 9, 0, 2})
	ip.SetTotalLen(28 + payload)
	ip.SetChecksum(packet.Checksum(ip))
	udp := packet.UDP(h[34:])
	copy(udp, []byte{0xc0, 1, 4789 >> 8, 4789 & 0xff})
	udp.SetLen(packet.UDPLen + payload)
	if _, err := unix.Write(u.fd, f); err != nil {
		t.Fatal(err)
	}
}

// receive calls Recv once. It returns the number of frames and the drop reason of the first. It need
// not wait: a write to a tap returns only after the kernel has passed the frame on.
func (u *tapUplink) receive(t *testing.T) (n int, drop packet.DropReason) {
	t.Helper()
	rx, b := u.dev.Rx()[0], new(packet.Batch)
	for end := time.Now().Add(200 * time.Millisecond); n == 0 && time.Now().Before(end); {
		if n = rx.Recv(b); n < 0 {
			t.Fatal(rx.Fault())
		}
	}
	drop = b.Frames[0].Drop
	rx.Release()
	return n, drop
}

// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"weft/e2e/lab"
)

// Known flows between two devices run in the kernel. Each frame arrives once and is counted once,
// while control and engine are killed, too. A change of the tables applies to such flows before the
// call returns.
func TestFlowsInTheKernel(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	h, a, b := l.Host("h"), l.Host("a"), l.Host("b")
	l.Wire(h, "p0", a, "eth0", guestMTU)
	l.Wire(h, "p1", b, "eth0", guestMTU)
	a.Address("eth0", guestIP+"/24")
	b.Address("eth0", remoteIP+"/24")
	d := h.Weftd("--name", "sw0")
	d.Weft("add-flow", "actions=normal")
	d.Weft("add-flow", "priority=40000,udp,tp_dst=7777,actions=normal")
	d.Weft("add-port", "p0", "type=device", "offload=on")
	d.Weft("add-port", "p1", "type=device", "offload=on")
	reach(t, a, remoteIP)

	u := datagrams{t: t, from: a.Raw("eth0"), to: b.Raw("eth0"), header: datagramHeader(t, macOf(t, a, "eth0"), macOf(t, b, "eth0"))}
	u.enterKernel(d)
	u.exchange(100)
	u.counted(d)
	d.Control().Kill()
	u.exchange(100)
	d.Start()
	u.exchange(100)
	u.counted(d)
	d.KillEngine()
	u.exchange(100)
	reach(t, a, remoteIP) // through the next engine
	u.exchange(100)
	u.counted(d)

	d.Weft("add-flow", "priority=45000,udp,tp_dst=7777,actions=mod_dl_src:02:00:00:00:00:99,dec_ttl,output:p1")
	u.arrives = bytes.Clone(u.header)
	copy(u.arrives[6:12], []byte{2, 0, 0, 0, 0, 0x99})
	u.arrives[22]--
	setHeaderChecksum(u.arrives)
	u.enterKernel(d)
	u.exchange(100)
	d.KillEngine()
	u.exchange(100)
	u.arrives = nil

	d.Weft("add-flow", "priority=50000,udp,tp_dst=7777,actions=drop")
	u.send()
	marker := append(append([]byte{}, u.header[:12]...), append([]byte{0x88, 0xb5}, make([]byte, 46)...)...)
	if err := u.from.Send(marker); err != nil {
		t.Fatal(err)
	}
	if _, err := u.to.Match(settle, func(got []byte) bool {
		if u.number(got) != 0 {
			t.Errorf("a frame of a dropped flow arrives: %x", got)
		}
		return bytes.HasPrefix(got, marker[:14])
	}); err != nil {
		t.Error(err)
	}
}

// The kernel changes VLAN tags and hop limits of known flows, and forwards other EtherTypes.
func TestTagsInTheKernel(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	h, a, b := l.Host("h"), l.Host("a"), l.Host("b")
	l.Wire(h, "p0", a, "eth0", guestMTU)
	l.Wire(h, "p1", b, "eth0", guestMTU)
	d := h.Weftd("--name", "sw0")
	d.Weft("add-port", "p0", "type=device", "offload=on")
	d.Weft("add-port", "p1", "type=device", "offload=on")

	addresses := []byte{2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1}
	udp6 := func(hops byte, tag ...byte) []byte {
		f := append(append(bytes.Clone(addresses), tag...), 0x86, 0xdd, 0x60, 0, 0, 0, 0, 26, 17, hops)
		f = append(append(f, net.ParseIP("fd00::1")...), net.ParseIP("fd00::2")...)
		return append(f, 0x30, 0x39, 0x1e, 0x61, 0, 26, 0, 1)
	}
	other := append(append(bytes.Clone(addresses), 0x88, 0xb5), "a protocol"...)
	const setTag = "dl_vlan=5,actions=dec_ttl,mod_vlan_vid:6,output:p1"
	for _, c := range []struct {
		flow            string
		header, arrives []byte
	}{
		{setTag, udp6(64, 0x81, 0, 0x40, 5), udp6(63, 0x81, 0, 0x40, 6)},
		{setTag, udp6(64, 0x88, 0xa8, 0, 5), udp6(63, 0x88, 0xa8, 0, 6)},
		{"dl_vlan=7,actions=strip_vlan,output:p1", udp6(64, 0x81, 0, 0x40, 7), udp6(64)},
		{"udp6,vlan_tci=0,actions=push_vlan:0x8100,set_field:4104->vlan_vid,output:p1", udp6(64), udp6(64, 0x81, 0, 0, 8)},
		{"dl_type=0x88b5,actions=output:p1", other, other},
	} {
		d.Weft("del-flows") // and the megaflow of the last one
		d.Weft("add-flow", c.flow)
		u := datagrams{t: t, from: a.Raw("eth0"), to: b.Raw("eth0"), header: c.header, arrives: c.arrives}
		u.enterKernel(d)
		u.exchange(20)
	}
}

// The kernel encapsulates known flows into a VXLAN tunnel to Linux, and follows the underlay.
func TestTunnelInTheKernel(t *testing.T) {
	t.Parallel()
	h, peer, a, remote := linuxTunnel(t)
	d := h.Weftd("--name", "sw0")
	d.Weft("add-port", "p0", "type=device", "offload=on")
	d.Weft("add-port", "up", "type=uplink", "dev=u0")
	d.Weft("add-port", "overlay", "type=vxlan", fmt.Sprint("vni=", siteVNI), "remote="+peerIP)
	d.Weft("add-flow", "priority=40000,udp,tp_dst=7777,actions=normal")

	u := datagrams{t: t, from: a.Raw("eth0"), to: remote.Raw("eth0"), header: datagramHeader(t, macOf(t, a, "eth0"), macOf(t, remote, "eth0"))}
	u.enterKernel(d)
	u.exchange(100)
	u.counted(d)
	var sent uint64
	eventually(t, func() error {
		overlay, up := portOf(t, d, "overlay").Stats, portOf(t, d, "up").Stats
		if sent = overlay.TxPackets; sent != uint64(u.sent) || overlay.TxBytes != 60*sent || up.TxPackets != sent || up.TxBytes != 110*sent {
			return fmt.Errorf("%d datagrams: tunnel %+v, uplink %+v", u.sent, overlay, up)
		}
		return nil
	})
	d.Control().Kill()
	u.exchange(100)
	d.Start()
	u.exchange(100)
	d.KillEngine()
	u.exchange(100)

	d.Weft("add-flow", "actions=normal")
	reach(t, a, remoteIP)
	peer.Run("ip", "link", "set", "u0", "address", "02:00:00:00:99:99")
	h.Run("ip", "neigh", "replace", peerIP, "lladdr", "02:00:00:00:99:99", "dev", "u0")
	reach(t, a, remoteIP)
	u.exchange(100)

	stream50M(t, a, remote, remoteIP)
	h.Run("ip", "link", "set", "u0", "mtu", "1400")
	reach(t, a, remoteIP, "-s", "1300")
}

// The kernel decapsulates known flows of a VXLAN tunnel from Linux. Each frame arrives once and is counted
// once, while control and engine are killed, too. Frames that change a flow arrive at once.
func TestDecapsulationInTheKernel(t *testing.T) {
	t.Parallel()
	h, peer, a, remote := linuxTunnel(t)
	d := h.Weftd("--name", "sw0")
	d.Weft("add-flow", "priority=40000,udp,tp_dst=7777,actions=normal")
	d.Weft("add-port", "p0", "type=device", "offload=on")
	d.Weft("add-port", "overlay", "type=vxlan", fmt.Sprint("vni=", siteVNI), "remote="+peerIP)
	d.Weft("add-port", "up", "type=uplink", "dev=u0", "offload=on")

	u := datagrams{t: t, from: remote.Raw("eth0"), to: a.Raw("eth0"), header: datagramHeader(t, macOf(t, remote, "eth0"), macOf(t, a, "eth0"))}
	u.enterKernel(d)
	u.exchange(100)
	u.counted(d)
	eventually(t, func() error {
		n := uint64(u.sent)
		overlay, up, out := portOf(t, d, "overlay").Stats, portOf(t, d, "up").Stats, portOf(t, d, "p0").Stats
		strays := overlay.RxDrops["table-miss"] // multicast reports of Linux's bridge
		if overlay.RxPackets != n+strays || strays == 0 && overlay.RxBytes != 60*n || up.RxPackets != n+strays ||
			up.RxBytes != overlay.RxBytes+50*(n+strays) || out.TxPackets != n || out.TxBytes != 60*n {
			return fmt.Errorf("%d datagrams: tunnel %+v, uplink %+v, device %+v", n, overlay, up, out)
		}
		return nil
	})
	d.Control().Kill()
	u.exchange(100)
	d.Start()
	u.exchange(100)
	u.counted(d)
	d.KillEngine()
	u.exchange(100)
	u.counted(d)

	d.Weft("add-flow", "priority=45000,udp,tp_dst=7777,actions=mod_dl_src:02:00:00:00:00:99,dec_ttl,output:p0")
	u.arrives = bytes.Clone(u.header)
	copy(u.arrives[6:12], []byte{2, 0, 0, 0, 0, 0x99})
	u.arrives[22]--
	setHeaderChecksum(u.arrives)
	u.enterKernel(d)
	u.exchange(100)

	d.Weft("add-flow", "actions=normal")
	peer.Run("ethtool", "-K", "u0", "tx", "on", "tso", "on", "gso", "on") // large frames, unfinished checksums
	reach(t, remote, guestIP)
	u.exchange(100)
	before := offloaded(d)
	stream50M(t, remote, a, guestIP)
	eventually(t, func() error { // at least the 800 large frames
		if n := offloaded(d) - before; n < 500 {
			return fmt.Errorf("the kernel has forwarded %d frames of the stream", n)
		}
		return nil
	})
	d.Weft("del-port", "overlay")
	d.Weft("add-port", "other", "type=vxlan", fmt.Sprint("vni=", siteVNI), "remote="+peerIP)
	reach(t, remote, guestIP)
}

// linuxTunnel wires host h to guest a and to a peer whose tunnel is Linux's. The peer bridges it to remote.
func linuxTunnel(t *testing.T) (h, peer, a, remote *lab.Host) {
	t.Helper()
	l := newLab(t)
	h, peer, a, remote = l.Host("h"), l.Host("peer"), l.Host("a"), l.Host("b")
	l.Wire(h, "p0", a, "eth0", guestMTU)
	l.Wire(h, "u0", peer, "u0", underlayMTU)
	h.Address("u0", hostIP+"/24")
	peer.Address("u0", peerIP+"/24")
	a.Address("eth0", guestIP+"/24")
	peer.LinuxVTEP(remote, remoteIP+"/24", siteVNI, guestMTU, "u0", peerIP, hostIP)
	return h, peer, a, remote
}

// stream50M sends 50 MB of TCP to a host with the given address.
func stream50M(t *testing.T, from, to *lab.Host, address string) {
	t.Helper()
	server := to.Start("iperf3", "-s", "-1")
	eventually(t, func() error { _, err := to.Try("sh", "-c", "ss -Hltn sport = 5201 | grep -q ."); return err })
	from.Run("iperf3", "-c", address, "-n", "50M", "--connect-timeout", "10000")
	server.Kill()
}

// datagrams sends numbered frames, mostly UDP datagrams, from one host to another.
type datagrams struct {
	t        *testing.T
	from, to *lab.Raw
	header   []byte
	sent     uint32
	arrives  []byte // header on arrival; nil: as sent
}

// enterKernel sends a few datagrams at a time, until the kernel forwards their flow.
func (u *datagrams) enterKernel(d *lab.Daemon) {
	u.t.Helper()
	const enough = 40
	before := offloaded(d)
	for end := time.Now().Add(settle); offloaded(d)-before < enough; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			u.t.Fatalf("no flow runs in the kernel: %s", d.Weft("show"))
		}
		u.exchange(4)
	}
}

// offloaded returns the number of frames that the kernel has forwarded.
func offloaded(d *lab.Daemon) (n uint64) {
	for _, w := range show(d).Workers {
		n += w.OffloadedFrames
	}
	return n
}

// datagramHeader returns the headers of a datagram with 18 bytes of payload.
func datagramHeader(t *testing.T, from, to string) []byte {
	src, err := net.ParseMAC(from)
	if err != nil {
		t.Fatal(err)
	}
	dst, err := net.ParseMAC(to)
	if err != nil {
		t.Fatal(err)
	}
	f := append(append(append([]byte{}, dst...), src...), 0x08, 0x00,
		0x45, 0, 0, 46, 0, 0, 0, 0, 64, 17, 0, 0)
	f = append(append(f, net.ParseIP(guestIP).To4()...), net.ParseIP(remoteIP).To4()...)
	setHeaderChecksum(f)
	return append(f, 0x30, 0x39, 0x1e, 0x61, 0, 26, 0, 0) // ports 12345 and 7777, no checksum
}

// setHeaderChecksum sets the checksum of the IPv4 header of a frame.
func setHeaderChecksum(f []byte) {
	f[24], f[25] = 0, 0
	sum := uint32(0)
	for i := 14; i < 34; i += 2 {
		sum += uint32(binary.BigEndian.Uint16(f[i:]))
	}
	binary.BigEndian.PutUint16(f[24:], ^uint16(sum+sum>>16))
}

// arrived returns the headers that a datagram has on arrival.
func (u *datagrams) arrived() []byte {
	if u.arrives != nil {
		return u.arrives
	}
	return u.header
}

func (u *datagrams) send() {
	u.t.Helper()
	u.sent++
	if err := u.from.Send(append(binary.BigEndian.AppendUint32(bytes.Clone(u.header), u.sent), make([]byte, 14)...)); err != nil {
		u.t.Fatal(err)
	}
}

// number returns the number of a datagram, or 0 for any other frame.
func (u *datagrams) number(frame []byte) uint32 {
	header := u.arrived()
	n := len(header)
	if len(frame) < n+18 || !bytes.Equal(frame[n-8:n], header[n-8:]) {
		return 0
	}
	return binary.BigEndian.Uint32(frame[n:])
}

// exchange sends n datagrams. Each must arrive once, in order.
func (u *datagrams) exchange(n int) {
	u.t.Helper()
	for range n {
		u.send()
		if _, err := u.to.Match(settle, func(got []byte) bool {
			number := u.number(got)
			if number != 0 && number != u.sent {
				u.t.Errorf("datagram %d arrives after %d was sent", number, u.sent)
			}
			if want := u.arrived(); number != 0 && !bytes.HasPrefix(got, want) {
				u.t.Errorf("datagram %d arrives as %x, want %x", number, got, want)
			}
			return number == u.sent
		}); err != nil {
			u.t.Fatalf("datagram %d: %v", u.sent, err)
		}
	}
}

// counted waits until the flow has counted all datagrams.
func (u *datagrams) counted(d *lab.Daemon) {
	u.t.Helper()
	want := fmt.Sprintf("n_packets=%d, n_bytes=%d,", u.sent, 60*u.sent)
	for end := time.Now().Add(settle); ; time.Sleep(10 * time.Millisecond) {
		got := d.Weft("dump-flows", "udp,tp_dst=7777")
		if strings.Contains(got, want) {
			return
		}
		if time.Now().After(end) {
			u.t.Fatalf("%d datagrams were sent: %s", u.sent, got)
		}
	}
}

// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"testing"
	"time"

	"weft/e2e/lab"
)

// A guest of weft and a guest behind Linux's own vxlan device reach each other.
func TestLinuxVXLAN(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	up := portOf(t, s.weft, "uplink")
	t.Logf("uplink: mode %s: %s", up.Mode, up.Reason)
	reach(t, s.guest, remoteIP)

	t.Run("ping", func(t *testing.T) {
		lab.MustPing(t, s.guest, remoteIP, 10)
		lab.MustPing(t, s.remote, guestIP, 10)
	})
	t.Run("smallest", func(t *testing.T) {
		lab.MustPing(t, s.guest, remoteIP, 3, "-s", "0")
		lab.MustPing(t, s.remote, guestIP, 3, "-s", "0")
	})
	t.Run("largest", func(t *testing.T) { // 1472 + 8 + 20 bytes is the guests' MTU
		lab.MustPing(t, s.guest, remoteIP, 3, "-s", "1472", "-M", "do")
		lab.MustPing(t, s.remote, guestIP, 3, "-s", "1472", "-M", "do")
	})
	t.Run("fragments", func(t *testing.T) {
		lab.MustPing(t, s.guest, remoteIP, 3, "-s", "4000")
		lab.MustPing(t, s.remote, guestIP, 3, "-s", "4000")
	})
	t.Run("TCP", func(t *testing.T) {
		flood(t, s.guest, s.remote, remoteIP)
		flood(t, s.remote, s.guest, guestIP)
	})
	t.Run("UDP", func(t *testing.T) {
		flood(t, s.guest, s.remote, remoteIP, "-u", "-b", "50M")
		flood(t, s.remote, s.guest, guestIP, "-u", "-b", "50M")
	})
	t.Run("VLAN", func(t *testing.T) { taggedFrames(t, s) })
	t.Run("IPv6", func(t *testing.T) {
		s.guest.EnableIPv6()
		s.remote.EnableIPv6()
		s.guest.Address("eth0", "fd00::1/64")
		s.remote.Address("eth0", "fd00::2/64")
		reach(t, s.guest, "fd00::2")
		lab.MustPing(t, s.guest, "fd00::2", 3, "-s", "1452", "-M", "do")
		flood(t, s.guest, s.remote, "fd00::2")
	})
}

// taggedFrames checks that frames with an inner VLAN tag cross the overlay unchanged.
func taggedFrames(t *testing.T, s *site) {
	a, b := s.guest.Raw("eth0"), s.remote.Raw("eth0")
	for _, way := range []struct {
		name     string
		from, to *lab.Raw
	}{{"to the peer", a, b}, {"from the peer", b, a}} {
		for _, size := range []int{60, 500, 14 + guestMTU} {
			for _, tci := range []uint16{5, 4094, 3<<13 | 100} {
				frame := tagged(udpFrame(t, 7000, size), tci)
				if err := way.from.Send(frame); err != nil {
					t.Fatal(err)
				}
				got, err := way.to.Match(settle, func(f []byte) bool { return bytes.HasPrefix(f, frame[:6]) })
				if err != nil || !bytes.Equal(got, frame) {
					t.Errorf("%s, %d bytes, tag %#04x: %v; got %d bytes: %x", way.name, size, tci, err, len(got), got[:min(len(got), 32)])
				}
			}
		}
	}
}

// The switch delivers frames with another VNI to no guest, and counts them.
func TestWrongVNI(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	reach(t, s.guest, remoteIP)
	s.weft.Weft("del-port", "overlay")
	s.weft.Weft("del-flows")
	s.weft.Weft("add-port", "overlay", "type=vxlan", fmt.Sprint("vni=", siteVNI+1), "remote="+peerIP)
	s.weft.Weft("add-flow", "in_port=guest,actions=output:overlay")
	s.weft.Weft("add-flow", "in_port=overlay,actions=output:guest")
	// there is no ARP before the ping, because the guests still have neighbour entries
	before := drops(s.weft, "no-tunnel-port")
	for _, way := range []struct {
		from *lab.Host
		to   string
	}{{s.guest, remoteIP}, {s.remote, guestIP}} {
		if p, err := lab.Ping(way.from, way.to, 5); err != nil || p.Received != 0 {
			t.Errorf("%s: %+v, %v through different VNIs", way.from, p, err)
		}
	}
	if after := drops(s.weft, "no-tunnel-port"); after <= before {
		t.Errorf("no-tunnel-port: %d drops before, %d after", before, after)
	}
	if n, _ := packets(t, s.weft, "in_port=overlay"); n != 0 {
		t.Errorf("%d frames of another VNI came out of the tunnel", n)
	}
}

// Flows can set and match the remote endpoint and the VNI of the tunnel.
func TestTunnelOfFlows(t *testing.T) {
	t.Parallel()
	s := newUnderlay(t)
	s.weft = s.host.Weftd()
	s.weft.Weft("add-port", "uplink", "type=af_xdp", "dev=u0")
	s.weft.Weft("add-port", "overlay", "type=vxlan", "vni=flow", "remote=flow")
	s.weft.Tap(s.guest, guestMAC, guestIP+"/24", guestMTU)
	s.weft.Weft("add-flow", fmt.Sprintf("in_port=guest,actions=set_field:%d->tun_id,set_field:%s->tun_dst,output:overlay", siteVNI, peerIP))
	s.weft.Weft("add-flow", fmt.Sprintf("in_port=overlay,tun_id=%d,tun_src=%s,tun_dst=%s,actions=output:guest", siteVNI, peerIP, hostIP))
	reach(t, s.guest, remoteIP)
	lab.MustPing(t, s.remote, guestIP, 3)
	flood(t, s.guest, s.remote, remoteIP)

	// with a flow that sets another VNI, frames reach no guest
	s.weft.Weft("add-flow", fmt.Sprintf("in_port=guest,actions=set_field:%d->tun_id,set_field:%s->tun_dst,output:overlay", siteVNI+1, peerIP))
	eventually(t, func() error {
		if p, err := lab.Ping(s.guest, remoteIP, 3); err != nil || p.Received != 0 {
			return fmt.Errorf("%+v, %v with another VNI in the flow", p, err)
		}
		return nil
	})
}

// Two weftds are connected by a veth, with AF_XDP or a packet socket at each end.
//
//	ga ──tap── weftd a ── AF_XDP u0 ══veth══ u0 AF_XDP ── weftd b ──tap── gb
func TestWeftToWeft(t *testing.T) {
	t.Parallel()
	for _, uplinks := range [][2]string{{"af_xdp", "af_xdp"}, {"uplink", "af_packet"}, {"af_packet", "af_xdp"}} {
		t.Run(uplinks[0]+" to "+uplinks[1], func(t *testing.T) { weftToWeft(t, uplinks) })
	}
}

func weftToWeft(t *testing.T, uplinks [2]string) {
	l := newLab(t)
	a, b, ga, gb := l.Host("a"), l.Host("b"), l.Host("ga"), l.Host("gb")
	l.Wire(a, "u0", b, "u0", underlayMTU)
	a.Address("u0", "172.16.0.1/24")
	b.Address("u0", "172.16.0.2/24")
	for i, end := range []struct {
		host, guest       *lab.Host
		remote, mac, addr string
	}{{a, ga, "172.16.0.2", "02:00:00:00:00:0a", "10.0.0.1/24"}, {b, gb, "172.16.0.1", "02:00:00:00:00:0b", "10.0.0.2/24"}} {
		if uplinks[i] == "af_packet" && uplinks[1-i] == "af_xdp" {
			end.host.NoOffloads("u0") // a veth would pass frames on with unfinished checksums
		}
		d := end.host.Weftd()
		d.Weft("add-port", "uplink", "type="+uplinks[i], "dev=u0")
		d.Weft("add-port", "overlay", "type=vxlan", "vni=100", "remote="+end.remote)
		d.Tap(end.guest, end.mac, end.addr, guestMTU)
		d.Weft("add-flow", "actions=normal")
	}
	reach(t, ga, "10.0.0.2")
	lab.MustPing(t, gb, "10.0.0.1", 5, "-s", "1472", "-M", "do")
	flood(t, ga, gb, "10.0.0.2")
	flood(t, gb, ga, "10.0.0.1", "-u", "-b", "50M")
}

// The outer headers conform to RFC 7348 section 5.
func TestOuterHeader(t *testing.T) {
	s := newSite(t)
	reach(t, s.guest, remoteIP)
	wire, tap := s.peer.Raw("u0"), s.guest.Raw("eth0")
	ports := map[uint16]bool{}
	for _, dst := range []int{7001, 7002, 7003, 7004, 7001} {
		inner := udpFrame(t, dst, 200)
		if err := tap.Send(inner); err != nil {
			t.Fatal(err)
		}
		outer, err := wire.Match(settle, func(f []byte) bool { return bytes.HasSuffix(f, inner) })
		if err != nil {
			t.Fatal(err)
		}
		checkOuter(t, outer, len(inner))
		ports[binary.BigEndian.Uint16(outer[34:])] = true
	}
	if len(ports) < 2 || len(ports) > 4 {
		t.Errorf("four inner flows have UDP source ports %v", ports)
	}
}

func checkOuter(t *testing.T, f []byte, innerLen int) {
	t.Helper()
	const eth, ip, udp = 14, 20, 8
	if len(f) != eth+ip+udp+8+innerLen {
		t.Fatalf("%d bytes on the wire for %d", len(f), innerLen)
	}
	h, u, vxlan := f[eth:], f[eth+ip:], f[eth+ip+udp:]
	for _, c := range []struct {
		name      string
		got, want uint32
	}{
		{"EtherType", uint32(binary.BigEndian.Uint16(f[12:])), 0x0800},
		{"version and header length", uint32(h[0]), 0x45},
		{"total length", uint32(binary.BigEndian.Uint16(h[2:])), uint32(len(f) - eth)},
		{"protocol", uint32(h[9]), 17},
		{"header checksum over all", uint32(sum16(h[:ip])), 0xffff},
		{"destination port", uint32(binary.BigEndian.Uint16(u[2:])), 4789},
		{"UDP length", uint32(binary.BigEndian.Uint16(u[4:])), uint32(len(f) - eth - ip)},
		{"VXLAN flags", binary.BigEndian.Uint32(vxlan), 0x08000000},
		{"VNI and reserved byte", binary.BigEndian.Uint32(vxlan[4:]), siteVNI << 8},
	} {
		if c.got != c.want {
			t.Errorf("outer %s: %#x, want %#x", c.name, c.got, c.want)
		}
	}
	if src := binary.BigEndian.Uint16(u); src < 49152 {
		t.Errorf("UDP source port %d is not in the dynamic range (RFC 7348 section 5)", src)
	}
}

// sum16 returns the ones' complement sum of b (RFC 1071), without the final inversion.
func sum16(b []byte) uint16 {
	var sum uint32
	for ; len(b) > 1; b = b[2:] {
		sum += uint32(binary.BigEndian.Uint16(b))
	}
	for sum > 0xffff {
		sum = sum&0xffff + sum>>16
	}
	return uint16(sum)
}

// Tunnels use the kernel's neighbour table. The first frame to an unknown neighbour
// waits and arrives.
func TestUnresolvedNeighbour(t *testing.T) {
	s := newSite(t)
	reach(t, s.guest, remoteIP)
	s.host.Run("ip", "neighbour", "flush", "dev", "u0")
	got := s.remote.Raw("eth0")
	frame := udpFrame(t, 7100, 300)
	if err := s.guest.Raw("eth0").Send(frame); err != nil {
		t.Fatal(err)
	}
	if _, err := got.Match(settle, func(f []byte) bool { return bytes.Equal(f, frame) }); err != nil {
		t.Errorf("the frame that found no neighbour: %v", err)
	}
	// the tunnel follows a change of the remote endpoint's MAC address
	s.peer.Run("ip", "link", "set", "u0", "address", "02:00:00:00:99:99")
	time.Sleep(100 * time.Millisecond)
	reach(t, s.peer, hostIP)
	reach(t, s.guest, remoteIP)
}

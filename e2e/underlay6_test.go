// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"testing"

	"weft/e2e/lab"
)

const (
	hostIP6 = "fd01::1"
	peerIP6 = "fd01::2"
)

// newSite6 creates a site like newSite, with an IPv6 underlay. overlayOptions has further
// options of the overlay port, device further options of the peer's vxlan device.
func newSite6(t *testing.T, overlayOptions []string, device ...string) *site {
	t.Helper()
	l := newLab(t)
	s := &site{t: t, lab: l}
	s.host, s.peer = l.Host("host"), l.Host("peer")
	s.guest, s.remote = l.Host("guest"), l.Host("remote")
	s.host.EnableIPv6()
	s.peer.EnableIPv6()
	l.Wire(s.host, "u0", s.peer, "u0", underlayMTU)
	s.host.Address("u0", hostIP6+"/64")
	s.peer.Address("u0", peerIP6+"/64")
	s.peer.LinuxVTEP(s.remote, remoteIP+"/24", siteVNI, guestMTU, "u0", peerIP6, hostIP6)
	if len(device) > 0 { // a vxlan device's flags cannot change
		vx := fmt.Sprint("vx", siteVNI)
		s.peer.Run("ip", "link", "delete", vx)
		s.peer.Run(append([]string{"ip", "link", "add", vx, "type", "vxlan", "id", fmt.Sprint(siteVNI),
			"local", peerIP6, "remote", hostIP6, "dstport", "4789", "dev", "u0"}, device...)...)
		s.peer.Run("ip", "link", "set", vx, "mtu", fmt.Sprint(guestMTU), "master", fmt.Sprint("br", siteVNI), "up")
	}
	s.weft = s.host.Weftd()
	s.weft.Weft("add-port", "uplink", "type=af_xdp", "dev=u0")
	s.weft.Weft(append([]string{"add-port", "overlay", "type=vxlan"}, overlayOptions...)...)
	s.weft.Tap(s.guest, guestMAC, guestIP+"/24", guestMTU)
	s.weft.Weft("add-flow", "in_port=guest,actions=output:overlay")
	s.weft.Weft("add-flow", "in_port=overlay,actions=output:guest")
	return s
}

// Over IPv6, the switch sends UDP checksums, because Linux requires them by default.
func TestUnderlay6(t *testing.T) {
	t.Parallel()
	s := newSite6(t, []string{fmt.Sprint("vni=", siteVNI), "remote=" + peerIP6})
	reach(t, s.guest, remoteIP)
	lab.MustPing(t, s.guest, remoteIP, 5)
	for _, size := range []string{"0", "1", "2", "63", "100", "101", "1471", "1472"} {
		lab.MustPing(t, s.guest, remoteIP, 1, "-s", size, "-M", "do")
		lab.MustPing(t, s.remote, guestIP, 1, "-s", size, "-M", "do")
	}
	flood(t, s.guest, s.remote, remoteIP)
	flood(t, s.remote, s.guest, guestIP)
	flood(t, s.guest, s.remote, remoteIP, "-u", "-b", "50M")
	lab.MustPing(t, s.host, peerIP6, 2) // traffic of the host's own kernel
}

// Flows can choose a remote tunnel endpoint with an IPv6 address. The receiver may
// accept datagrams without a checksum.
func TestUnderlay6ByFlow(t *testing.T) {
	t.Parallel()
	s := newSite6(t, []string{"vni=flow", "remote=flow", "udp_csum=off"}, "udp6zerocsumrx")
	s.weft.Weft("del-flows")
	s.weft.Weft("add-flow", fmt.Sprintf("in_port=guest,actions=set_field:%d->tun_id,set_field:%s->tun_ipv6_dst,output:overlay", siteVNI, peerIP6))
	s.weft.Weft("add-flow", fmt.Sprintf("in_port=overlay,tun_id=%d,tun_ipv6_src=%s,tun_ipv6_dst=%s,actions=output:guest", siteVNI, peerIP6, hostIP6))
	reach(t, s.guest, remoteIP)
	lab.MustPing(t, s.guest, remoteIP, 3, "-s", "1472", "-M", "do")
	flood(t, s.guest, s.remote, remoteIP)
}

// If the switch sends no UDP checksum but the peer requires one, nothing arrives. This
// shows that the tests above can fail.
func TestUnderlay6ZeroChecksum(t *testing.T) {
	t.Parallel()
	s := newSite6(t, []string{fmt.Sprint("vni=", siteVNI), "remote=" + peerIP6, "udp_csum=off"})
	if p, err := lab.Ping(s.guest, remoteIP, 3); err != nil || p.Received != 0 {
		t.Errorf("pings without an outer checksum: %+v, %v", p, err)
	}
}

// Options of the overlay port set fields of the outer headers.
func TestOuterSettings(t *testing.T) {
	s := newUnderlay(t)
	s.weft = s.host.Weftd()
	s.weft.Weft("add-port", "uplink", "type=af_xdp", "dev=u0")
	s.weft.Weft("add-port", "overlay", "type=vxlan", fmt.Sprint("vni=", siteVNI), "remote="+peerIP,
		"udp_csum=on", "ttl=7", "tos=0xb8", "df=on", "src_port=50000-50003")
	s.weft.Tap(s.guest, guestMAC, guestIP+"/24", guestMTU)
	s.weft.Weft("add-flow", "in_port=guest,actions=output:overlay")
	s.weft.Weft("add-flow", "in_port=overlay,actions=output:guest")
	wire := s.peer.Raw("u0")
	// the frame passes only with a correct checksum, because Linux verifies every
	// checksum that is not zero
	reach(t, s.guest, remoteIP)
	lab.MustPing(t, s.guest, remoteIP, 3, "-s", "1472", "-M", "do")
	f, err := wire.Match(settle, func(f []byte) bool {
		return len(f) > 42 && f[12] == 8 && f[13] == 0 && f[23] == 17 && f[36] == 4789>>8 && f[37] == 4789&0xff
	})
	if err != nil {
		t.Fatal("no VXLAN frame on the underlay: ", err)
	}
	if port := int(f[34])<<8 | int(f[35]); f[15] != 0xb8 || f[22] != 7 || f[20]&0x40 == 0 || port < 50000 || port > 50003 {
		t.Errorf("TOS %#x, TTL %d, flags %#x, source port %d", f[15], f[22], f[20], port)
	}
	if f[40] == 0 && f[41] == 0 {
		t.Error("no outer checksum")
	}
	for _, wrong := range []string{"udp_csum=maybe", "ttl=0", "tos=3", "df=1", "src_port=9", "src_port=9-8"} {
		_, stderr, code := s.weft.TryWeft("add-port", "x", "type=vxlan", "vni=1", "remote=flow", wrong)
		if err := oneLine(stderr); code == 0 || err != nil {
			t.Errorf("%s: exit code %d, %v", wrong, code, err)
		}
	}
}

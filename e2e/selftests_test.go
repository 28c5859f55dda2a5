// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"encoding/binary"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"

	"weft/e2e/lab"
)

// weft, with a Linux peer, passes the cases of Linux's own tests of VXLAN
// (tools/testing/selftests/net/forwarding: vxlan_bridge_1d.sh,
// vxlan_bridge_1d_port_8472.sh, vxlan_reserved.sh). Cases about Linux's bridge do not
// apply (vxlan_bridge_1q.sh, vxlan_fdb_veto.sh, q-in-vni).
func TestLinuxForwardingCases(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	c := &forwarding{site: s, wire: s.peer.Raw("u0"), guestWire: s.guest.Raw("eth0"), port: 4789}
	c.overlay()
	reach(t, s.guest, remoteIP)
	t.Run("ping_ipv4", func(t *testing.T) { lab.MustPing(t, s.guest, remoteIP, 2); lab.MustPing(t, s.remote, guestIP, 2) })
	t.Run("test_flood", c.flood)
	t.Run("test_unicast", c.unicast)
	t.Run("test_ttl", c.ttl)
	t.Run("test_tos", c.tos)
	t.Run("test_ecn_encap", c.ecnEncap)
	t.Run("test_ecn_decap", c.ecnDecap)
	t.Run("vxlan_reserved", c.reserved)
	t.Run("test_learning", c.learning)
	t.Run("reapply_config", func(t *testing.T) { c.overlay(); reach(t, s.guest, remoteIP) })
	t.Run("multicast underlay", c.multicast)
	t.Run("port_8472", c.otherPort)
	t.Run("external", c.external)
	t.Run("several VTEP addresses", c.vteps)
	t.Run("busy polling", c.busyPolling)
}

type forwarding struct {
	*site
	wire, guestWire *lab.Raw
	port            int
}

// silentRemotes are addresses of remote tunnel endpoints that do not exist. Neighbour
// entries make the kernel send frames to them.
var silentRemotes = []string{"172.16.0.3", "172.16.0.4"}

func (c *forwarding) overlay(options ...string) {
	c.t.Helper()
	c.weft.TryWeft("del-port", "overlay")
	c.weft.Weft("del-flows")
	c.weft.Weft("add-flow", "actions=normal")
	for _, o := range silentRemotes {
		c.host.Run("ip", "neighbour", "replace", o, "lladdr", "02:00:00:00:0f:"+o[len(o)-1:]+"0", "dev", "u0", "nud", "permanent")
	}
	c.weft.Weft(append([]string{"add-port", "overlay", "type=vxlan", fmt.Sprint("vni=", siteVNI), fmt.Sprint("dst_port=", c.port),
		"remote=" + strings.Join(append([]string{peerIP}, silentRemotes...), ",")}, options...)...)
}

func (c *forwarding) frameTo(t *testing.T, limit time.Duration, remote string, match func(inner []byte) bool) ([]byte, bool) {
	ip := net.ParseIP(remote).To4()
	f, err := c.wire.Match(limit, func(f []byte) bool {
		return len(f) >= 64 && f[12] == 8 && f[13] == 0 && f[23] == 17 && string(f[30:34]) == string(ip) &&
			int(binary.BigEndian.Uint16(f[36:])) == c.port && match(f[50:])
	})
	if err != nil {
		return nil, false
	}
	return f[14:], true
}

func own(t *testing.T, mac string, number int) ([]byte, func([]byte) bool) {
	frame := udpFrameFrom(t, guestMAC, number)
	dst, err := net.ParseMAC(mac)
	if err != nil {
		t.Fatal(err)
	}
	copy(frame, dst)
	return frame, func(inner []byte) bool { return string(inner) == string(frame) }
}

func (c *forwarding) remoteMAC() string {
	out := c.remote.Run("cat", "/sys/class/net/eth0/address")
	return strings.TrimSpace(out)
}

func (c *forwarding) flood(t *testing.T) {
	for n, mac := range []string{"02:00:00:00:0e:01", "ff:ff:ff:ff:ff:ff"} {
		frame, same := own(t, mac, 7200+n)
		if err := c.guestWire.Send(frame); err != nil {
			t.Fatal(err)
		}
		for _, remote := range append([]string{peerIP}, silentRemotes...) {
			if _, ok := c.frameTo(t, settle, remote, same); !ok {
				t.Errorf("%s did not go to %s", mac, remote)
			}
		}
	}
}

func (c *forwarding) unicast(t *testing.T) {
	lab.MustPing(t, c.remote, guestIP, 1)
	frame, same := own(t, c.remoteMAC(), 7210)
	if err := c.guestWire.Send(frame); err != nil {
		t.Fatal(err)
	}
	if _, ok := c.frameTo(t, settle, peerIP, same); !ok {
		t.Error("it did not go to its VTEP")
	}
	if _, ok := c.frameTo(t, silence, silentRemotes[0], same); ok {
		t.Error("it went to another VTEP")
	}
}

func icmp(inner []byte) bool {
	return len(inner) > 34 && inner[12] == 8 && inner[13] == 0 && inner[23] == 1
}

// outerOf pings the remote guest, with further arguments of ping. It returns the outer
// IP header of a ping.
func (c *forwarding) outerOf(t *testing.T, args ...string) []byte {
	t.Helper()
	wire := c.peer.Raw("u0") // a new socket has no earlier frames in its queue
	lab.MustPing(t, c.guest, remoteIP, 1, args...)
	was := c.wire
	c.wire = wire
	defer func() { c.wire = was }()
	h, ok := c.frameTo(t, settle, peerIP, icmp)
	if !ok {
		t.Fatal("no datagram on the underlay")
	}
	return h
}

func (c *forwarding) ttl(t *testing.T) {
	for _, v := range []struct {
		option string
		inner  string
		want   byte
	}{{"ttl=99", "64", 99}, {"ttl=1", "64", 1}, {"ttl=inherit", "10", 10}, {"ttl=inherit", "200", 200}} {
		c.overlay(v.option)
		reach(t, c.guest, remoteIP)
		if h := c.outerOf(t, "-t", v.inner); h[8] != v.want {
			t.Errorf("%s, inner TTL %s: %d on the wire", v.option, v.inner, h[8])
		}
	}
}

func (c *forwarding) tos(t *testing.T) {
	for _, v := range []struct {
		option, inner string
		want          byte
	}{{"tos=0x40", "0", 0x40}, {"tos=inherit", "0x40", 0x40}, {"tos=inherit", "0x30", 0x30}, {"tos=0", "0x40", 0}} {
		c.overlay(v.option)
		reach(t, c.guest, remoteIP)
		if h := c.outerOf(t, "-Q", v.inner); h[1] != v.want {
			t.Errorf("%s, inner TOS %s: %#x on the wire", v.option, v.inner, h[1])
		}
	}
}

// ecnEncap checks that the ECN bits of the outer header equal those of the inner one
// (RFC 6040 section 4.1).
func (c *forwarding) ecnEncap(t *testing.T) {
	for _, option := range []string{"tos=0", "tos=inherit"} {
		c.overlay(option)
		reach(t, c.guest, remoteIP)
		for ecn := range byte(4) {
			if h := c.outerOf(t, "-Q", fmt.Sprint(ecn)); h[1]&3 != ecn {
				t.Errorf("%s: inner %d, outer %d", option, ecn, h[1]&3)
			}
		}
	}
}

func (c *forwarding) encapsulated(t *testing.T, tos byte, header uint64, inner []byte) []byte {
	mac := func(h *lab.Host) net.HardwareAddr {
		a, err := net.ParseMAC(strings.TrimSpace(h.Run("cat", "/sys/class/net/u0/address")))
		if err != nil {
			t.Fatal(err)
		}
		return a
	}
	udp := &layers.UDP{SrcPort: 50000, DstPort: layers.UDPPort(c.port)}
	ip := &layers.IPv4{Version: 4, TTL: 9, TOS: tos, Protocol: layers.IPProtocolUDP, SrcIP: net.ParseIP(peerIP), DstIP: net.ParseIP(hostIP)}
	udp.SetNetworkLayerForChecksum(ip)
	return serialize(t, &layers.Ethernet{SrcMAC: mac(c.peer), DstMAC: mac(c.host), EthernetType: layers.EthernetTypeIPv4}, ip, udp,
		gopacket.Payload(append(binary.BigEndian.AppendUint64(nil, header), inner...)))
}

// innerWithTOS returns a small datagram to the guest, with the given TOS byte. number
// identifies the datagram.
func innerWithTOS(t *testing.T, tos byte, number int) []byte {
	dst, _ := net.ParseMAC(guestMAC)
	eth := crafted(layers.EthernetTypeIPv4)
	eth.DstMAC = dst
	ip := &layers.IPv4{Version: 4, TTL: 64, TOS: tos, Id: uint16(number), Protocol: layers.IPProtocolUDP,
		SrcIP: net.ParseIP(craftedSrcIP), DstIP: net.ParseIP(craftedDstIP)}
	udp := &layers.UDP{SrcPort: 4000, DstPort: layers.UDPPort(number)}
	udp.SetNetworkLayerForChecksum(ip)
	return serialize(t, eth, ip, udp, gopacket.Payload("weft"))
}

func (c *forwarding) arrives(t *testing.T, limit time.Duration, datagram []byte, number int) []byte {
	if err := c.wire.Send(datagram); err != nil {
		t.Fatal(err)
	}
	f, err := c.guestWire.Match(limit, func(f []byte) bool {
		return len(f) >= 38 && f[12] == 8 && f[13] == 0 && int(binary.BigEndian.Uint16(f[36:])) == number
	})
	if err != nil {
		return nil
	}
	return f[14:34]
}

const plainHeader = 0x08<<56 | siteVNI<<8

// ecnDecap checks that the switch combines the ECN bits of both headers as RFC 6040
// section 4.2 and Linux's INET_ECN_decapsulate do.
func (c *forwarding) ecnDecap(t *testing.T) {
	const drop = 0xff
	// row: inner ECN; column: outer ECN; each in the order Not-ECT, ECT(1), ECT(0), CE
	want := [4][4]byte{
		0: {0, 0, 0, drop}, 1: {1, 1, 1, 3}, 2: {2, 1, 2, 3}, 3: {3, 3, 3, 3},
	}
	before := drops(c.weft, "bad-ecn")
	for inner := range byte(4) {
		for outer := range byte(4) {
			number := 7300 + int(inner)*4 + int(outer)
			limit := settle
			if want[inner][outer] == drop {
				limit = silence
			}
			h := c.arrives(t, limit, c.encapsulated(t, outer, plainHeader, innerWithTOS(t, inner, number)), number)
			got := byte(drop)
			if h != nil {
				got = h[1] & 3
				if sum16(h) != 0xffff {
					t.Errorf("inner %d, outer %d: the checksum is wrong", inner, outer)
				}
			}
			if got != want[inner][outer] {
				t.Errorf("inner %d, outer %d: %d, want %d", inner, outer, got, want[inner][outer])
			}
		}
	}
	if after := drops(c.weft, "bad-ecn"); after != before+1 {
		t.Errorf("%d drops of bad ECN, want 1", after-before)
	}
}

// reserved checks the option reserved=. It says how the switch treats bits that RFC
// 7348 reserves.
func (c *forwarding) reserved(t *testing.T) {
	number := 7400
	for _, v := range []struct {
		option string
		bits   uint64
		want   bool
	}{
		{"reserved=ignore", 0, true}, {"reserved=ignore", 0xf7<<56 | 0xffffff<<32 | 0xff, true},
		{"reserved=refuse", 0, true}, {"reserved=refuse", 1, false}, {"reserved=refuse", 0x80 << 56, false},
		{"reserved=gbp", 0x80<<56 | 5<<32, true}, {"reserved=gpe", 0x04<<56 | 3<<32, true}, {"reserved=gpe", 0x04<<56 | 1<<32, false},
	} {
		c.overlay(v.option)
		number++
		limit := settle
		if !v.want {
			limit = silence
		}
		h := c.arrives(t, limit, c.encapsulated(t, 0, plainHeader|v.bits, innerWithTOS(t, 0, number)), number)
		if (h != nil) != v.want {
			t.Errorf("%s, bits %#x: passed %v", v.option, v.bits, h != nil)
		}
	}
}

func (c *forwarding) learning(t *testing.T) {
	c.overlay("learning=off")
	reach(t, c.remote, guestIP)
	frame, same := own(t, c.remoteMAC(), 7500)
	if err := c.guestWire.Send(frame); err != nil {
		t.Fatal(err)
	}
	for _, remote := range append([]string{peerIP}, silentRemotes...) {
		if _, ok := c.frameTo(t, settle, remote, same); !ok {
			t.Errorf("the frame did not go to %s", remote)
		}
	}
}

// multicast checks that a broadcast goes to the multicast group once, and that other
// frames go to the known tunnel endpoint.
func (c *forwarding) multicast(t *testing.T) {
	const group = "239.1.1.1"
	vx := fmt.Sprint("vx", siteVNI)
	c.peer.Run("ip", "link", "delete", vx)
	c.peer.Run("ip", "link", "add", vx, "type", "vxlan", "id", fmt.Sprint(siteVNI), "local", peerIP, "group", group, "dstport", "4789", "dev", "u0")
	c.peer.Run("ip", "link", "set", vx, "mtu", fmt.Sprint(guestMTU), "master", fmt.Sprint("br", siteVNI), "up")
	c.weft.Weft("del-port", "overlay")
	c.weft.Weft("add-port", "overlay", "type=vxlan", fmt.Sprint("vni=", siteVNI), "remote="+group, "dev=u0")
	for _, h := range []*lab.Host{c.guest, c.remote} { // ARP requests go through the group
		h.Run("ip", "neighbour", "flush", "dev", "eth0")
	}
	reach(t, c.remote, guestIP)
	c.guest.Run("ip", "neighbour", "flush", "dev", "eth0")
	reach(t, c.guest, remoteIP)
	frame, same := own(t, "ff:ff:ff:ff:ff:ff", 7600)
	if err := c.guestWire.Send(frame); err != nil {
		t.Fatal(err)
	}
	if h, ok := c.frameTo(t, settle, group, same); !ok || h[8] != 1 {
		t.Errorf("a broadcast to the group: %v, TTL %d", ok, h[8])
	}
	if _, ok := c.frameTo(t, silence, group, same); ok {
		t.Error("a broadcast went to the group twice")
	}
	frame, same = own(t, c.remoteMAC(), 7601)
	if err := c.guestWire.Send(frame); err != nil {
		t.Fatal(err)
	}
	if _, ok := c.frameTo(t, settle, peerIP, same); !ok {
		t.Error("what is known did not go to its VTEP")
	}
	for _, wrong := range []string{"remote=239.1.1.1", "remote=239.1.1.1,172.16.0.2", "remote=172.16.0.2 dev=u0"} {
		_, stderr, code := c.weft.TryWeft(append([]string{"add-port", "x", "type=vxlan", "vni=1"}, strings.Fields(wrong)...)...)
		if err := oneLine(stderr); code == 0 || err != nil {
			t.Errorf("%s: exit code %d, %v", wrong, code, err)
		}
	}
}

func (c *forwarding) otherPort(t *testing.T) {
	c.port = 8472
	c.overlay()
	vx := fmt.Sprint("vx", siteVNI)
	c.peer.Run("ip", "link", "delete", vx)
	c.peer.Run("ip", "link", "add", vx, "type", "vxlan", "id", fmt.Sprint(siteVNI), "local", peerIP, "remote", hostIP, "dstport", "8472", "dev", "u0")
	c.peer.Run("ip", "link", "set", vx, "mtu", fmt.Sprint(guestMTU), "master", fmt.Sprint("br", siteVNI), "up")
	reach(t, c.guest, remoteIP)
	lab.MustPing(t, c.guest, remoteIP, 2)
}

// external uses as peer a Linux vxlan device in external mode: routes choose the VNI
// and the remote endpoint.
func (c *forwarding) external(t *testing.T) {
	c.port = 4789
	c.overlay()
	c.peer.Run("ip", "link", "delete", fmt.Sprint("vx", siteVNI))
	c.peer.Run("ip", "link", "add", "vxe", "type", "vxlan", "external", "dstport", "4789", "local", peerIP)
	c.peer.Run("ip", "link", "set", "vxe", "mtu", fmt.Sprint(guestMTU), "up")
	c.peer.Run("ip", "address", "add", "10.0.0.50/32", "dev", "vxe")
	c.peer.Run("ip", "route", "add", guestIP+"/32", "encap", "ip", "id", fmt.Sprint(siteVNI), "dst", hostIP, "dev", "vxe", "src", "10.0.0.50")
	reach(t, c.peer, guestIP)
	lab.MustPing(t, c.peer, guestIP, 3, "-s", "1472", "-M", "do")
	lab.MustPing(t, c.guest, "10.0.0.50", 3)
}

func (c *forwarding) vteps(t *testing.T) {
	c.host.Address("u0", "172.16.0.11/24")
	c.weft.Weft("del-port", "overlay")
	c.weft.Weft("del-flows")
	for name, local := range map[string]string{"first": hostIP, "second": "172.16.0.11"} {
		c.weft.Weft("add-port", name, "type=vxlan", fmt.Sprint("vni=", siteVNI), "remote="+peerIP, "local="+local)
	}
	c.weft.Weft("add-flow", "in_port=guest,actions=output:second")
	c.weft.Weft("add-flow", "in_port=second,actions=output:guest")
	c.weft.Weft("add-flow", "in_port=first,actions=drop")
	c.peer.Run("ip", "route", "replace", guestIP+"/32", "encap", "ip", "id", fmt.Sprint(siteVNI), "dst", "172.16.0.11", "dev", "vxe", "src", "10.0.0.50")
	reach(t, c.peer, guestIP)
	wire := c.peer.Raw("u0")
	lab.MustPing(t, c.guest, "10.0.0.50", 2)
	if _, err := wire.Match(settle, func(f []byte) bool {
		return len(f) > 50 && f[12] == 8 && f[13] == 0 && f[23] == 17 && f[29] == 11 && f[33] == 2
	}); err != nil {
		t.Error("nothing came from the second address: ", err)
	}
	c.peer.Run("ip", "route", "replace", guestIP+"/32", "encap", "ip", "id", fmt.Sprint(siteVNI), "dst", hostIP, "dev", "vxe", "src", "10.0.0.50")
	if p, err := lab.Ping(c.peer, guestIP, 2); err != nil || p.Received != 0 {
		t.Errorf("to the first address, whose port has no flow: %+v, %v", p, err)
	}
}

// busyPolling checks that the system calls of the worker poll the uplink's device.
func (c *forwarding) busyPolling(t *testing.T) {
	c.weft.Weft("del-port", "uplink")
	c.weft.Weft("add-port", "uplink", "type=af_xdp", "dev=u0", "busy_poll=50")
	c.peer.Run("ip", "route", "replace", guestIP+"/32", "encap", "ip", "id", fmt.Sprint(siteVNI), "dst", "172.16.0.11", "dev", "vxe", "src", "10.0.0.50")
	reach(t, c.peer, guestIP)
	lab.MustPing(t, c.guest, "10.0.0.50", 5)
	const file = "/sys/class/net/u0/napi_defer_hard_irqs"
	if out := strings.TrimSpace(c.host.Run("cat", file)); out != "2" {
		t.Errorf("%s: %s", file, out)
	}
	c.weft.Weft("del-port", "uplink")
	if out := strings.TrimSpace(c.host.Run("cat", file)); out != "0" {
		t.Errorf("%s afterwards: %s", file, out)
	}
}

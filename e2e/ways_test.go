// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"testing"

	"weft/e2e/lab"
)

// Connections to one tunnel endpoint spread over two next hops, and survive the loss of
// one.
//
//	172.16.0.1 ── 172.16.0.2
//	172.16.8.8                         172.16.9.9
//	172.16.1.1 ── 172.16.1.2
func TestSeveralWays(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	host, peer, guest, remote := l.Host("host"), l.Host("peer"), l.Host("guest"), l.Host("remote")
	const local, far = "172.16.8.8", "172.16.9.9"
	for i := range 2 {
		dev := fmt.Sprint("u", i)
		l.Wire(host, dev, peer, dev, underlayMTU)
		host.Address(dev, fmt.Sprintf("172.16.%d.1/24", i))
		peer.Address(dev, fmt.Sprintf("172.16.%d.2/24", i))
		peer.NoOffloads(dev)
	}
	host.Address("lo", local+"/32")
	peer.Address("lo", far+"/32")
	host.Run("ip", "route", "add", far, "src", local, "nexthop", "via", "172.16.0.2", "nexthop", "via", "172.16.1.2")
	peer.Run("ip", "route", "add", local, "src", far, "nexthop", "via", "172.16.0.1", "nexthop", "via", "172.16.1.1")
	peer.Run("sysctl", "-q", "net.ipv4.fib_multipath_hash_policy=1")
	peer.LinuxVTEP(remote, remoteIP+"/24", siteVNI, guestMTU, "u0", far, local)
	// the new vxlan device has no underlying device, so that routes choose the next hop
	vx := fmt.Sprint("vx", siteVNI)
	peer.Run("ip", "link", "delete", vx)
	peer.Run("ip", "link", "add", vx, "type", "vxlan", "id", fmt.Sprint(siteVNI), "local", far, "remote", local, "dstport", "4789")
	peer.Run("ip", "link", "set", vx, "mtu", fmt.Sprint(guestMTU), "master", fmt.Sprint("br", siteVNI), "up")

	d := host.Weftd()
	d.Weft("add-port", "up0", "type=af_xdp", "dev=u0")
	d.Weft("add-port", "up1", "type=af_xdp", "dev=u1")
	d.Weft("add-port", "overlay", "type=vxlan", fmt.Sprint("vni=", siteVNI), "remote="+far, "local="+local)
	d.Tap(guest, guestMAC, guestIP+"/24", guestMTU)
	d.Weft("add-flow", "actions=normal")
	reach(t, guest, remoteIP)

	sent := func(port string) uint64 { return portOf(t, d, port).Stats.TxPackets }
	before := [2]uint64{sent("up0"), sent("up1")}
	wire := guest.Raw("eth0")
	const connections = 64
	for i := range connections {
		if err := wire.Send(udpFrame(t, 8000+i, 200)); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, func() error {
		a, b := sent("up0")-before[0], sent("up1")-before[1]
		if a < connections/8 || b < connections/8 || a+b < connections {
			return fmt.Errorf("%d and %d frames of %d connections", a, b, connections)
		}
		return nil
	})
	flood(t, guest, remote, remoteIP)
	flood(t, remote, guest, guestIP)

	host.Run("ip", "link", "set", "u1", "down")
	// Linux keeps using a next hop without carrier. If the hash of the pings chose this next
	// hop, the answers to all pings would be lost without this route.
	peer.Run("ip", "route", "replace", local, "via", "172.16.0.1", "src", far)
	reach(t, guest, remoteIP)
	if p, err := lab.PingAll(guest, remoteIP, 5); err != nil || p.Received != 5 {
		t.Errorf("with one way left: %+v, %v", p, err)
	}
}

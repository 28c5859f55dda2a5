// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bytes"
	"fmt"
	"net"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"weft/e2e/lab"
)

// checksumErrors returns how many checksum and header errors the guest's kernel has
// counted, for IPv4 and IPv6. cat is a command of the guest that prints a file.
func checksumErrors(t *testing.T, g lab.Guest, cat ...string) (total int) {
	t.Helper()
	read := func(path string) string {
		out, err := g.Try(append(cat, path)...)
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	// /proc/net/snmp has two lines for each protocol: the names and the values
	lines := strings.Split(read("/proc/net/snmp"), "\n")
	for i := 0; i+1 < len(lines); i += 2 {
		names, values := strings.Fields(lines[i]), strings.Fields(lines[i+1])
		for at := range names {
			if names[at] == "InCsumErrors" || names[at] == "InHdrErrors" {
				if n, _ := strconv.Atoi(values[at]); n > 0 {
					t.Logf("%s: %s %s %d", g, names[0], names[at], n)
					total += n
				}
			}
		}
	}
	for line := range strings.Lines(read("/proc/net/snmp6")) {
		if f := strings.Fields(line); len(f) == 2 && (strings.HasSuffix(f[0], "InCsumErrors") || f[0] == "Ip6InHdrErrors") {
			if n, _ := strconv.Atoi(f[1]); n > 0 {
				t.Logf("%s: %s %d", g, f[0], n)
				total += n
			}
		}
	}
	return total
}

// Large frames and frames with unfinished checksums cross the overlay in both
// directions, and reach a tap without offloads. All received checksums are valid.
func TestOffloads(t *testing.T) {
	t.Parallel()
	offloads(t, newSite(t))
}

// An AF_PACKET uplink also receives large frames and frames with unfinished checksums
// from Linux's vxlan device.
func TestOffloadsPacket(t *testing.T) {
	t.Parallel()
	s := newUnderlay(t)
	s.peer.Run("ethtool", "-K", "u0", "tx", "on", "tso", "on", "gso", "on")
	s.weft = s.host.Weftd()
	s.weft.Weft("add-port", "uplink", "type=af_packet", "dev=u0")
	s.weft.Weft("add-port", "overlay", "type=vxlan", fmt.Sprint("vni=", siteVNI), "remote="+peerIP)
	s.weft.Tap(s.guest, guestMAC, guestIP+"/24", guestMTU)
	offloads(t, s)
}

func offloads(t *testing.T, s *site) {
	plain := s.lab.Host("plain")
	s.weft.Weft("add-port", "plain", "type=tap", "dev=eth0", "netns="+plain.NS, "mac=02:00:00:00:00:03", "mtu=1500", "offloads=off")
	plain.Address("eth0", "10.0.0.3/24")
	s.weft.Weft("del-flows")
	s.weft.Weft("add-flow", "actions=normal")
	for i, g := range []*lab.Host{s.guest, s.remote, plain} {
		g.EnableIPv6()
		g.Address("eth0", fmt.Sprintf("fd00::%d/64", i+1))
	}
	reach(t, s.guest, remoteIP)
	reach(t, s.guest, "10.0.0.3")
	reach(t, s.guest, "fd00::2")
	reach(t, plain, "fd00::1")
	before := map[string]int{}
	for _, g := range []*lab.Host{s.guest, s.remote, plain} {
		// bridges send some faulty frames while they start, which must not count
		before[g.Name] = checksumErrors(t, g, "cat")
	}

	flood(t, s.guest, s.remote, remoteIP)
	flood(t, s.guest, s.remote, "fd00::2")
	if p := portOf(t, s.weft, "guest").Stats; p.RxBytes < 4000*p.RxPackets {
		t.Errorf("the guest sent %d frames of %d bytes in all: no large ones", p.RxPackets, p.RxBytes)
	}
	was := portOf(t, s.weft, "guest").Stats
	flood(t, s.remote, s.guest, guestIP)
	flood(t, s.remote, s.guest, "fd00::1")
	after := portOf(t, s.weft, "guest").Stats
	if n, bytes := after.TxPackets-was.TxPackets, after.TxBytes-was.TxBytes; bytes < 2000*n {
		t.Errorf("the guest got %d frames of %d bytes in all: nothing was coalesced", n, bytes)
	}
	flood(t, plain, s.guest, guestIP)
	flood(t, s.guest, plain, "10.0.0.3")
	flood(t, s.guest, plain, "fd00::3")
	flood(t, s.remote, plain, "10.0.0.3")
	flood(t, plain, s.remote, remoteIP, "-u", "-b", "50M")
	flood(t, s.guest, plain, "10.0.0.3", "-u", "-b", "50M")
	for _, g := range []*lab.Host{s.guest, s.remote, plain} {
		if n := checksumErrors(t, g, "cat") - before[g.Name]; n != 0 {
			t.Errorf("%s found %d wrong checksums or headers", g, n)
		}
	}
	for _, reason := range []string{"bad-offload", "bad-ipv4", "bad-ipv6", "bad-transport", "oversize-frame", "too-big-for-tunnel"} {
		if n := drops(s.weft, reason); n != 0 {
			t.Errorf("%d frames dropped as %s", n, reason)
		}
	}
}

// An ICMP error tells a guest the path MTU of the tunnel.
func TestPathMTU(t *testing.T) {
	t.Parallel()
	s := newUnderlay(t)
	for _, h := range []*lab.Host{s.host, s.peer} {
		h.Run("ip", "link", "set", "u0", "mtu", "1500")
	}
	s.weft = s.host.Weftd()
	s.weft.Weft("add-port", "uplink", "type=af_xdp", "dev=u0")
	s.weft.Weft("add-port", "overlay", "type=vxlan", fmt.Sprint("vni=", siteVNI), "remote="+peerIP)
	s.weft.Tap(s.guest, guestMAC, guestIP+"/24", guestMTU)
	s.weft.Weft("add-flow", "actions=normal")
	s.guest.EnableIPv6()
	s.remote.EnableIPv6()
	s.guest.Address("eth0", "fd00::1/64")
	s.remote.Address("eth0", "fd00::2/64")
	reach(t, s.guest, remoteIP)
	reach(t, s.guest, "fd00::2")
	const fits = 1500 - 50
	for _, c := range []struct {
		to      string
		headers int
	}{{remoteIP, 28}, {"fd00::2", 48}} {
		if p, err := lab.Ping(s.guest, c.to, 2, "-s", fmt.Sprint(fits-c.headers+1), "-M", "do"); err != nil || p.Received != 0 {
			t.Errorf("%s: %+v, %v with a packet too long by one", c.to, p, err)
		}
		if route := s.guest.Run("ip", "route", "get", c.to); !strings.Contains(route, fmt.Sprint("mtu ", fits)) {
			t.Errorf("the guest has not learned the MTU to %s: %s", c.to, route)
		}
		lab.MustPing(t, s.guest, c.to, 2, "-s", fmt.Sprint(fits-c.headers), "-M", "do")
		flood(t, s.guest, s.remote, c.to)
	}
	if n := drops(s.weft, "too-big-for-tunnel"); n == 0 {
		t.Error("nothing was too big")
	}
}

// Datagrams that a guest sends by one call with UDP_SEGMENT arrive as separate,
// unchanged datagrams.
func TestUDPSegmentation(t *testing.T) {
	s := newSite(t)
	second := s.lab.Host("second")
	s.weft.Weft("add-port", "second", "type=tap", "dev=eth0", "netns="+second.NS, "mac=02:00:00:00:00:03", "mtu=1500")
	second.Address("eth0", "10.0.0.3/24")
	s.weft.Weft("del-flows")
	s.weft.Weft("add-flow", "actions=normal")
	reach(t, s.guest, remoteIP)
	reach(t, s.guest, "10.0.0.3")
	reach(t, s.remote, "10.0.0.3")
	for _, way := range []struct {
		from, to *lab.Host
		addr     string
	}{{s.guest, s.remote, remoteIP}, {s.remote, s.guest, guestIP}, {s.guest, second, "10.0.0.3"}, {s.remote, second, "10.0.0.3"}} {
		segmentsArrive(t, way.from, way.to, way.addr)
	}
	if p := portOf(t, s.weft, "guest").Stats; p.RxBytes < 4000*p.RxPackets {
		t.Logf("the guest sent %d frames of %d bytes in all: its kernel cuts by itself", p.RxPackets, p.RxBytes)
	}
	for _, g := range []*lab.Host{s.guest, s.remote, second} {
		if n := checksumErrors(t, g, "cat"); n > 2 { // as in offloads
			t.Errorf("%s found %d wrong checksums or headers", g, n)
		}
	}
}

func segmentsArrive(t *testing.T, from, to *lab.Host, addr string) {
	t.Helper()
	const size, count = 1400, 20
	var in, out net.Conn
	if err := to.Do(func() error {
		c, err := net.ListenUDP("udp", &net.UDPAddr{Port: 9000})
		in = c
		return err
	}); err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	if err := from.Do(func() (err error) {
		out, err = net.Dial("udp", addr+":9000")
		return err
	}); err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	raw, err := out.(*net.UDPConn).SyscallConn()
	if err == nil {
		raw.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.IPPROTO_UDP, unix.UDP_SEGMENT, size) })
	}
	if err != nil {
		t.Fatal(err)
	}
	data := make([]byte, size*count-100)
	for i := range data {
		data[i] = byte(i/size + i)
	}
	if _, err := out.Write(data); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, 2000)
	for i := range count {
		in.SetReadDeadline(time.Now().Add(settle))
		n, err := in.Read(got)
		if err != nil {
			t.Fatalf("%s to %s: datagram %d of %d: %v", from, to, i, count, err)
		}
		if want := data[i*size : min((i+1)*size, len(data))]; !bytes.Equal(got[:n], want) {
			t.Fatalf("%s to %s: datagram %d of %d bytes differs", from, to, i, n)
		}
	}
}

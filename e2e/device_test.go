// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"strings"
	"testing"

	"weft/e2e/lab"
)

// uplinkState waits until the uplink has a state whose detail contains the words.
func uplinkState(t *testing.T, s *site, state, words string) {
	t.Helper()
	eventually(t, func() error {
		p := portOf(t, s.weft, "uplink")
		if p.State != state || !strings.Contains(p.Detail, words) {
			return fmt.Errorf("the uplink is %s (%s), want %s with %q", p.State, p.Detail, state, words)
		}
		return nil
	})
}

// If an uplink's device disappears, the uplink's state has the reason. The uplink
// resumes when the device is back.
func TestUplinkDeviceRemoved(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	reach(t, s.guest, remoteIP)
	for range 2 {
		s.host.Run("ip", "link", "delete", "u0")
		uplinkState(t, s, "failed", "u0")
		if p, err := lab.Ping(s.guest, remoteIP, 1); err != nil || p.Received != 0 {
			t.Fatalf("pings without an uplink: %+v, %v", p, err)
		}
		s.lab.Wire(s.host, "u0", s.peer, "u0", underlayMTU)
		s.host.Address("u0", hostIP+"/24")
		s.peer.Address("u0", peerIP+"/24")
		s.peer.NoOffloads("u0")
		uplinkState(t, s, "up", "")
		// the peer's vxlan device has disappeared with the device below it
		s.peer.Try("ip", "link", "delete", fmt.Sprint("vx", siteVNI))
		s.peer.Run("ip", "link", "add", fmt.Sprint("vx", siteVNI), "type", "vxlan", "id", fmt.Sprint(siteVNI),
			"local", peerIP, "remote", hostIP, "dstport", "4789", "dev", "u0")
		s.peer.Run("ip", "link", "set", fmt.Sprint("vx", siteVNI), "mtu", fmt.Sprint(guestMTU), "master", fmt.Sprint("br", siteVNI), "up")
		reach(t, s.guest, remoteIP)
		kernelTraffic(t, s, "the device is back")
	}
}

// The uplink reports and counts changes of its link.
func TestUplinkLinkFlap(t *testing.T) {
	s := newSite(t)
	reach(t, s.guest, remoteIP)
	s.host.Run("ip", "link", "set", "u0", "down")
	uplinkState(t, s, "down", "device u0 is down")
	s.host.Run("ip", "link", "set", "u0", "up")
	uplinkState(t, s, "up", "link down 1 times")
	reach(t, s.guest, remoteIP)
	s.peer.Run("ip", "link", "set", "u0", "down")
	uplinkState(t, s, "down", "no carrier")
	s.peer.Run("ip", "link", "set", "u0", "up")
	uplinkState(t, s, "up", "link down 2 times")
	reach(t, s.guest, remoteIP)
}

// The uplink follows a change of its device's MTU. It does not attach a new XDP
// program, because this would reset the link of some cards.
func TestUplinkMTU(t *testing.T) {
	s := newUnderlay(t)
	for _, h := range []*lab.Host{s.host, s.peer} {
		h.Run("ip", "link", "set", "u0", "mtu", "1400")
	}
	s.weft = s.host.Weftd()
	s.weft.Weft("add-port", "uplink", "type=af_xdp", "dev=u0")
	s.weft.Weft("add-port", "overlay", "type=vxlan", fmt.Sprint("vni=", siteVNI), "remote="+peerIP)
	s.weft.Tap(s.guest, guestMAC, guestIP+"/24", guestMTU)
	s.weft.Weft("add-flow", "in_port=guest,actions=output:overlay")
	s.weft.Weft("add-flow", "in_port=overlay,actions=output:guest")
	reach(t, s.guest, remoteIP)
	program := s.host.Run("ip", "-d", "link", "show", "u0")
	program = program[strings.Index(program, "prog/xdp"):]
	big := []string{"-s", "1472", "-M", "do"}
	if p, err := lab.Ping(s.guest, remoteIP, 1, big...); err == nil && p.Received != 0 {
		t.Error("a frame of 1514 bytes crossed an underlay of MTU 1400")
	}
	for _, h := range []*lab.Host{s.peer, s.host} {
		h.Run("ip", "link", "set", "u0", "mtu", fmt.Sprint(underlayMTU))
	}
	s.guest.Run("ip", "route", "flush", "cache") // makes the guest forget the path MTU
	reach(t, s.guest, remoteIP, big...)
	if now := s.host.Run("ip", "-d", "link", "show", "u0"); !strings.Contains(now, strings.SplitN(program, "\n", 2)[0]) {
		t.Errorf("another XDP program than %s:\n%s", program, now)
	}
	uplinkState(t, s, "up", "")
}

// The uplink attaches its XDP program by a BPF link, so that no other tool can detach
// it.
func TestUplinkProgramStays(t *testing.T) {
	s := newSite(t)
	reach(t, s.guest, remoteIP)
	if _, err := s.host.Try("ip", "link", "set", "u0", "xdp", "off"); err == nil {
		t.Error("ip link could take a program off that a bpf_link holds")
	}
	reach(t, s.guest, remoteIP)
}

// The uplink receives a jumbo frame in several buffers.
func TestJumboUnderlay(t *testing.T) {
	t.Parallel()
	s := newUnderlay(t)
	for _, h := range []*lab.Host{s.host, s.peer} {
		h.Run("ip", "link", "set", "u0", "mtu", "9000")
	}
	s.weft = s.host.Weftd()
	s.weft.Weft("add-port", "uplink", "type=af_xdp", "dev=u0")
	vx, br := fmt.Sprint("vx", siteVNI), fmt.Sprint("br", siteVNI)
	for _, dev := range []string{vx, "p-remote", br} {
		s.peer.Run("ip", "link", "set", dev, "mtu", "8900")
	}
	s.remote.Run("ip", "link", "set", "eth0", "mtu", "8900")
	s.weft.Weft("add-port", "overlay", "type=vxlan", fmt.Sprint("vni=", siteVNI), "remote="+peerIP)
	s.weft.Tap(s.guest, guestMAC, guestIP+"/24", 8900)
	s.weft.Weft("add-flow", "actions=normal")
	reach(t, s.guest, remoteIP)
	for _, size := range []string{"3700", "4000", "8000", "8872"} {
		lab.MustPing(t, s.guest, remoteIP, 2, "-s", size, "-M", "do")
		lab.MustPing(t, s.remote, guestIP, 2, "-s", size, "-M", "do")
	}
	flood(t, s.guest, s.remote, remoteIP)
	flood(t, s.remote, s.guest, guestIP)
	uplinkState(t, s, "up", "")
}

// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	"weft/e2e/lab"
)

// The host can use the uplink device for its own traffic while the switch runs, is
// killed and restarts.
func TestKernelTrafficOnUplink(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	reach(t, s.guest, remoteIP)
	kernelTraffic(t, s, "the switch runs")

	// the host's own traffic continues when the switch dies
	s.host.ServeIperf("5190")
	tcp := s.peer.Start("iperf3", "-c", hostIP, "-p", "5190", "-t", "4", "-b", "50M", "--connect-timeout", "10000")
	const count = 80
	pings := s.peer.StartPings(hostIP, count, pingGap.Seconds())
	time.Sleep(time.Second)
	s.weft.Control().Signal(syscall.SIGKILL)
	s.weft.KillEngine()
	if err := tcp.Wait(60 * time.Second); err != nil {
		t.Errorf("TCP to the host across the switch's death: %v\n%s", err, tcp.Output())
	}
	if outage := steadyPings(t, pings, count); outage != 0 {
		t.Errorf("the host lost pings for %v across the switch's death", outage)
	}
	if pid := s.weft.EnginePID(); pid != 0 {
		t.Fatalf("engine %d runs after both were killed", pid)
	}
	kernelTraffic(t, s, "the switch is dead")

	s.weft.Start()
	s.readdress()
	reach(t, s.guest, remoteIP)
	kernelTraffic(t, s, "the switch is there again")
}

func kernelTraffic(t *testing.T, s *site, moment string) {
	t.Helper()
	lab.MustPing(t, s.peer, hostIP, 5)
	lab.MustPing(t, s.host, peerIP, 5, "-s", "1572", "-M", "do")
	f, err := lab.Iperf(s.peer, s.host, hostIP, 1)
	if err != nil || f.BitsPerSecond < 1e6 {
		t.Errorf("TCP to the host while %s: %v, %v", moment, f, err)
	}
	// the kernel also handles ARP
	s.peer.Run("ip", "neighbour", "flush", "dev", "u0")
	lab.MustPing(t, s.peer, hostIP, 1)
}

// When weftd stops, it removes its XDP program and its ports.
func TestCleanExit(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	reach(t, s.guest, remoteIP)
	if out := s.host.Run("ip", "-d", "link", "show", "u0"); !strings.Contains(out, "xdp") {
		t.Errorf("no XDP program on the uplink while the switch runs:\n%s", out)
	}
	s.weft.Stop()
	if out := s.host.Run("ip", "-d", "link", "show", "u0"); strings.Contains(out, "xdp") {
		t.Errorf("the XDP program is still there:\n%s", out)
	}
	kernelTraffic(t, s, "the switch has ended")
	s.weft.Start()
	s.readdress()
	reach(t, s.guest, remoteIP)
}

// A deleted uplink can be added again at once.
func TestUplinkComesAndGoes(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	for range 3 {
		reach(t, s.guest, remoteIP)
		s.weft.Weft("del-port", "uplink")
		if out := s.host.Run("ip", "-d", "link", "show", "u0"); strings.Contains(out, "xdp") {
			t.Fatalf("the XDP program is still there:\n%s", out)
		}
		lab.MustPing(t, s.peer, hostIP, 2)
		s.weft.Weft("add-port", "uplink", "type=af_xdp", "dev=u0")
	}
	for _, mode := range []string{"copy", "generic"} {
		t.Run(mode, func(t *testing.T) {
			s.weft.Weft("del-port", "uplink")
			s.weft.Weft("add-port", "uplink", "type=af_xdp", "dev=u0", "mode="+mode)
			if got := portOf(t, s.weft, "uplink").Mode; got != mode {
				t.Errorf("asked for mode %s, got %s", mode, got)
			}
			reach(t, s.guest, remoteIP)
			lab.MustPing(t, s.guest, remoteIP, 3, "-s", "1472", "-M", "do")
			lab.MustPing(t, s.peer, hostIP, 2)
		})
	}
	t.Run("zerocopy is refused on a veth", func(t *testing.T) {
		s.weft.Weft("del-port", "uplink")
		_, stderr, code := s.weft.TryWeft("add-port", "uplink", "type=af_xdp", "dev=u0", "mode=zerocopy")
		if code == 0 {
			t.Skip("this kernel's veth has AF_XDP zero-copy")
		}
		if err := oneLine(stderr); err != nil {
			t.Error(err)
		}
	})
}

// oneLine returns an error unless message has exactly one line.
func oneLine(message string) error {
	trimmed := strings.TrimSuffix(message, "\n")
	if trimmed == "" || strings.Contains(trimmed, "\n") || strings.Contains(trimmed, "goroutine ") {
		return fmt.Errorf("want one line, got %q", message)
	}
	return nil
}

// SPDX-License-Identifier: Apache-2.0

// Package e2e tests the built programs in network namespaces and with virtual
// machines, against Linux's own VXLAN.
package e2e

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"weft/api"
	"weft/e2e/lab"
)

func TestMain(m *testing.M) { lab.Main(m) }

// settle is the time limit of effects that normally happen at once.
const settle = 30 * time.Second

// silence is how long a test waits before it concludes that a frame does not arrive.
const silence = 250 * time.Millisecond

func newLab(t *testing.T) *lab.Lab {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("end-to-end tests need root")
	}
	l := lab.New(t)
	t.Cleanup(l.Close)
	return l
}

// site is the setup of most tests: a guest of weftd, and a remote guest behind
// Linux's own VXLAN.
//
//	guest ──tap── weftd ── AF_XDP u0 ══veth══ u0 ── vxlan, bridge ── remote
//	10.0.0.1      host    172.16.0.1        172.16.0.2   peer     10.0.0.2
//	                         underlay's MTU 1600, guests' 1500
type site struct {
	t                         *testing.T
	lab                       *lab.Lab
	host, peer, guest, remote *lab.Host
	weft                      *lab.Daemon
}

const (
	underlayMTU = 1600
	guestMTU    = 1500
	siteVNI     = 7
	hostIP      = "172.16.0.1"
	peerIP      = "172.16.0.2"
	guestIP     = "10.0.0.1"
	remoteIP    = "10.0.0.2"
	guestMAC    = "02:00:00:00:00:01"
)

// newUnderlay creates a site without weftd.
func newUnderlay(t *testing.T) *site {
	t.Helper()
	l := newLab(t)
	s := &site{t: t, lab: l}
	s.host, s.peer = l.Host("host"), l.Host("peer")
	s.guest, s.remote = l.Host("guest"), l.Host("remote")
	l.Wire(s.host, "u0", s.peer, "u0", underlayMTU)
	s.host.Address("u0", hostIP+"/24")
	s.peer.Address("u0", peerIP+"/24")
	s.peer.LinuxVTEP(s.remote, remoteIP+"/24", siteVNI, guestMTU, "u0", peerIP, hostIP)
	return s
}

// newSite creates a site with flows in both directions between the ports overlay and
// guest.
func newSite(t *testing.T) *site {
	t.Helper()
	s := newUnderlay(t)
	s.weft = s.host.Weftd()
	s.weft.Weft("add-port", "uplink", "type=af_xdp", "dev=u0")
	s.weft.Weft("add-port", "overlay", "type=vxlan", fmt.Sprint("vni=", siteVNI), "remote="+peerIP)
	s.weft.Tap(s.guest, guestMAC, guestIP+"/24", guestMTU)
	s.weft.Weft("add-flow", "in_port=guest,actions=output:overlay")
	s.weft.Weft("add-flow", "in_port=overlay,actions=output:guest")
	return s
}

// readdress configures the guest's tap, which is new after a restart of the switch.
func (s *site) readdress() {
	s.t.Helper()
	eventually(s.t, func() error { _, err := s.guest.Try("ip", "link", "show", "eth0"); return err })
	if out := s.guest.Run("ip", "address", "show", "dev", "eth0"); !strings.Contains(out, guestIP) {
		s.guest.Address("eth0", guestIP+"/24")
	}
}

func reach(t *testing.T, from lab.Guest, to string, args ...string) {
	t.Helper()
	if err := lab.WaitPing(from, to, settle, args...); err != nil {
		t.Fatal(err)
	}
}

func flood(t *testing.T, from, to lab.Guest, addr string, args ...string) {
	t.Helper()
	lab.MustFlood(t, 5e6, from, to, addr, args...)
}

func eventually(t *testing.T, f func() error) {
	t.Helper()
	var err error
	for end := time.Now().Add(settle); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		if err = f(); err == nil {
			return
		}
	}
	t.Fatalf("after %v: %v", settle, err)
}

func flows(d *lab.Daemon) []api.Flow {
	var list []api.Flow
	d.WeftJSON(&list, "dump-flows")
	return list
}

func packets(t *testing.T, d *lab.Daemon, text string) (frames, bytes uint64) {
	t.Helper()
	found := 0
	for _, f := range flows(d) {
		if strings.Contains(f.Line, text) {
			found++
			frames, bytes = f.Packets, f.Bytes
		}
	}
	if found != 1 {
		t.Fatalf("%d flows with %q in:\n%s", found, text, d.Weft("dump-flows"))
	}
	return frames, bytes
}

func show(d *lab.Daemon) api.Show {
	var s api.Show
	d.WeftJSON(&s, "show")
	return s
}

func portOf(t *testing.T, d *lab.Daemon, name string) api.Port {
	t.Helper()
	for _, p := range show(d).Ports {
		if p.Name == name {
			return p
		}
	}
	t.Fatalf("no port %s in:\n%s", name, d.Weft("show"))
	return api.Port{}
}

func drops(d *lab.Daemon, reason string) uint64 {
	var n uint64
	for _, w := range show(d).Workers {
		n += w.Drops[reason]
	}
	return n
}

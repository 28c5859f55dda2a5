// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/gopacket/layers"

	"weft/e2e/lab"
)

// Wrong input changes nothing. weft exits with code 2 and prints one line that has the
// wrong word.
func TestBadInput(t *testing.T) {
	l := newLab(t)
	h := l.Host("host")
	d := h.Weftd()
	d.Weft("add-port", "p1", "type=tap", "dev=p1")
	d.Weft("add-flow", "in_port=p1,actions=drop")
	batch := filepath.Join(l.Dir, "flows")
	if err := os.WriteFile(batch, []byte("priority=1,actions=drop\npriority=2,tcp,tp_dst=http0,actions=drop\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	before := d.Weft("dump-flows") + fmt.Sprint(len(show(d).Ports))
	for _, c := range []struct {
		word string // word that the message must contain
		args []string
	}{
		{"nw_sorc", []string{"add-flow", "ip,nw_sorc=1.2.3.4,actions=drop"}},
		{"10.0.0.256", []string{"add-flow", "ip,nw_src=10.0.0.256,actions=drop"}},
		{"actions", []string{"add-flow", "ip"}},
		{"outptu", []string{"add-flow", "actions=outptu:1"}},
		{"nosuchport", []string{"add-flow", "actions=output:nosuchport"}},
		{"nosuchport", []string{"add-flow", "in_port=nosuchport,actions=drop"}},
		{"70000", []string{"add-flow", "tcp,tp_dst=70000,actions=drop"}},
		{"table", []string{"add-flow", "table=300,actions=drop"}},
		{"goto_table", []string{"add-flow", "table=5,actions=goto_table:4"}},
		{"nw_bogus", []string{"add-flow", "actions=set_field:10.0.0.1->nw_bogus,drop"}},
		{"http0", []string{"add-flows", batch}},
		{"nw_sorc", []string{"del-flows", "ip,nw_sorc=1.2.3.4"}},
		{"nw_sorc", []string{"dump-flows", "ip,nw_sorc=1.2.3.4"}},
		{"type", []string{"add-port", "p2", "dev=p2"}},
		{"tpa", []string{"add-port", "p2", "type=tpa"}},
		{"devv", []string{"add-port", "p2", "type=tap", "devv=p2"}},
		{"99999999", []string{"add-port", "p2", "type=vxlan", "vni=99999999", "remote=1.2.3.4"}},
		{"1.2.3", []string{"add-port", "p2", "type=vxlan", "vni=9", "remote=1.2.3"}},
		{"sideways", []string{"add-port", "p2", "type=vhost-user", "path=/tmp/x", "mode=sideways"}},
		{"path", []string{"add-port", "p2", "type=vhost-user"}},
		{"p1", []string{"add-port", "p1", "type=tap", "dev=p9"}},
		{"frobnicate", []string{"frobnicate"}},
	} {
		_, stderr, code := d.TryWeft(c.args...)
		line := strings.Join(c.args, " ")
		if code != 2 {
			t.Errorf("weft %s: exit code %d, want 2; %s", line, code, stderr)
		}
		if err := oneLine(stderr); err != nil {
			t.Errorf("weft %s: %v", line, err)
		}
		if !strings.Contains(stderr, c.word) {
			t.Errorf("weft %s: %q does not name %q", line, stderr, c.word)
		}
	}
	strip := func(dump string) string { // remove durations, which change
		var kept []string
		for _, word := range strings.Split(dump, ", ") {
			if !strings.HasPrefix(word, "duration=") && !strings.Contains(word, "idle_age") {
				kept = append(kept, word)
			}
		}
		return strings.Join(kept, ", ")
	}
	if after := d.Weft("dump-flows") + fmt.Sprint(len(show(d).Ports)); strip(after) != strip(before) {
		t.Errorf("refused input changed something:\nbefore %s\nafter %s", before, after)
	}
}

// If a valid request fails, weft prints one line and exits with the right code.
func TestClearFailures(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	h := l.Host("host")
	d := h.Weftd()
	for _, args := range [][]string{
		{"add-port", "up", "type=af_xdp", "dev=nosuchdev"},
		{"add-port", "t", "type=tap", "dev=t", "netns=nosuchns"},
		{"del-port", "nosuchport"},
	} {
		_, stderr, code := d.TryWeft(args...)
		if code == 0 {
			t.Errorf("weft %s: exit code 0", strings.Join(args, " "))
		}
		if err := oneLine(stderr); err != nil {
			t.Errorf("weft %s: %v", strings.Join(args, " "), err)
		}
	}
	if n := len(show(d).Ports); n != 0 {
		t.Errorf("%d ports are left of those that failed", n)
	}

	weftd := d.Binary("weftd")
	for _, c := range []struct {
		name string
		args []string
	}{
		{"a socket in use", []string{weftd, "--socket", d.Socket, "--state", filepath.Join(l.Dir, "other")}},
		{"a state directory in use", []string{weftd, "--socket", filepath.Join(l.Dir, "o.sock"), "--state", d.State}},
		{"a state directory that cannot be", []string{weftd, "--socket", filepath.Join(l.Dir, "o.sock"), "--state", "/dev/null/x"}},
		{"a flag that is none", []string{weftd, "--sokcet", "x"}},
	} {
		p := h.Start(c.args...)
		if err := p.Wait(settle); err == nil || p.Alive() {
			t.Errorf("%s: weftd runs, or ended well: %v", c.name, p.Output())
		}
		if err := oneLine(p.Output()); err != nil {
			t.Errorf("%s: %v", c.name, err)
		}
	}
	// The first daemon still works.
	d.Weft("show")
}

// The switch drops malformed frames, and counts them by port and reason.
func TestMalformedFrames(t *testing.T) {
	s := newSite(t)
	reach(t, s.guest, remoteIP)
	tap := s.guest.Raw("eth0")
	ip := func(change func(ip []byte)) []byte {
		f := udpFrame(t, 9, 100)
		change(f[14:])
		return f
	}
	arp := append(serialize(t, crafted(layers.EthernetTypeARP))[:14], 0, 1, 8, 0, 6, 4, 0)
	const count = 3
	for _, c := range []struct {
		reason, name string
		frame        []byte
	}{
		{"bad-ipv4", "version 5", ip(func(h []byte) { h[0] = 0x55 })},
		{"bad-ipv4", "header length 4 words", ip(func(h []byte) { h[0] = 0x44 })},
		// From Ethernet's shortest frame on, such frames live: see cutOff of flowtable.
		{"bad-ipv4", "total length beyond the frame", ip(func(h []byte) { binary.BigEndian.PutUint16(h[2:], 2000) })[:14+45]},
		{"bad-ipv4", "cut header", udpFrame(t, 9, 100)[:14+12]},
		{"bad-transport", "UDP header cut", func() []byte {
			f := udpFrame(t, 9, 100)[:14+20+4]
			binary.BigEndian.PutUint16(f[16:], 24)
			return f
		}()},
		{"bad-arp", "cut", arp},
		{"bad-vlan", "cut tag", append(udpFrame(t, 9, 100)[:12], 0x81, 0x00, 0x00)},
	} {
		before := portDrops(t, s, "guest", c.reason)
		for range count {
			if err := tap.Send(c.frame); err != nil {
				t.Fatalf("%s: %v", c.name, err)
			}
		}
		eventually(t, func() error {
			if n := portDrops(t, s, "guest", c.reason) - before; n != count {
				return fmt.Errorf("%s: %d drops under %s, want %d: %v", c.name, n, c.reason, count, portOf(t, s.weft, "guest").Stats.RxDrops)
			}
			return nil
		})
	}
	lab.MustPing(t, s.guest, remoteIP, 3)
}

func portDrops(t *testing.T, s *site, port, reason string) uint64 {
	t.Helper()
	return portOf(t, s.weft, port).Stats.RxDrops[reason]
}

// The switch drops invalid VXLAN datagrams, and counts them by reason.
func TestMalformedTunnelFrames(t *testing.T) {
	s := newSite(t)
	reach(t, s.guest, remoteIP)
	wire := s.peer.Raw("u0")
	// Each test case changes a copy of this valid frame.
	good := capture(t, s)
	const count = 3
	for _, c := range []struct {
		reason string
		change func(f []byte) []byte
	}{
		{"bad-vxlan", func(f []byte) []byte { f[42] = 0; return f }},            // VNI flag clear
		{"no-tunnel-port", func(f []byte) []byte { f[46] ^= 0x40; return f }},   // another VNI
		{"bad-outer", func(f []byte) []byte { f[38], f[39] = 0, 7; return f }},  // UDP length shorter than its header
		{"runt-frame", func(f []byte) []byte { return cutInner(f[:50+8], 58) }}, // inner frame of 8 bytes
	} {
		before := drops(s.weft, c.reason)
		frame := c.change(append([]byte{}, good...))
		for range count {
			if err := wire.Send(frame); err != nil {
				t.Fatal(err)
			}
		}
		eventually(t, func() error {
			if n := drops(s.weft, c.reason) - before; n != count {
				return fmt.Errorf("%d drops under %s, want %d: %v", n, c.reason, count, show(s.weft).Workers)
			}
			return nil
		})
	}
	lab.MustPing(t, s.guest, remoteIP, 3)
}

func capture(t *testing.T, s *site) []byte {
	t.Helper()

	wire := s.peer.Raw("u0")
	if err := s.guest.Raw("eth0").Send(udpFrame(t, 7200, 100)); err != nil {
		t.Fatal(err)
	}
	f, err := wire.Match(settle, func(f []byte) bool { return len(f) == 150 && f[36] == 0x12 && f[37] == 0xb5 })
	if err != nil {
		t.Fatal(err)
	}
	swap := func(a, b []byte) {
		for i := range a {
			a[i], b[i] = b[i], a[i]
		}
	}
	swap(f[0:6], f[6:12])    // Ethernet addresses
	swap(f[26:30], f[30:34]) // IP addresses
	return f
}

// cutInner truncates a datagram so that the inner frame has n bytes. The lengths in the
// outer headers match.
func cutInner(f []byte, n int) []byte {
	binary.BigEndian.PutUint16(f[16:], uint16(n-14))
	binary.BigEndian.PutUint16(f[38:], uint16(n-34))
	f[24], f[25] = 0, 0
	binary.BigEndian.PutUint16(f[24:], ^sum16(f[14:34]))
	return f
}

// An idle daemon sleeps. The test only logs the daemon's CPU time, without a limit.
func TestIdle(t *testing.T) {
	s := newSite(t)
	reach(t, s.guest, remoteIP)
	time.Sleep(time.Second)
	const window = 3 * time.Second
	engine := s.weft.EnginePID()
	before := cpuTicks(t, engine) + cpuTicks(t, s.weft.Control().PID())
	time.Sleep(window)
	after := cpuTicks(t, engine) + cpuTicks(t, s.weft.Control().PID())
	const hz = 100 // USER_HZ
	t.Logf("idle, control and engine take %.2f %% of a core", float64(after-before)/hz/window.Seconds()*100)
	if sleeps := show(s.weft).Workers[0].Sleeps; sleeps == 0 {
		t.Error("the worker has never slept")
	}
}

// cpuTicks returns a process's CPU time in clock ticks (proc(5)).
func cpuTicks(t *testing.T, pid int) int {
	t.Helper()
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(stat), ") ")
	var utime, stime int
	if _, err := fmt.Sscan(strings.Join(strings.Fields(rest)[11:13], " "), &utime, &stime); err != nil {
		t.Fatal(err)
	}
	return utime + stime
}

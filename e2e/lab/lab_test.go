// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestMain(m *testing.M) {
	if os.Getenv(killedEnv) != "" {
		l := New(Program{})
		if root := GroupRoot(); root != "" {
			_ = os.MkdirAll(filepath.Join(root, fmt.Sprintf("weft%d-1", os.Getpid()), "inner"), 0o755) // TestGuard misses the group then
		}
		l.Host("host").Run("sleep", "600")
	}
	code := m.Run()
	CloseAll()
	os.Exit(code)
}

func newLab(t *testing.T) *Lab {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("network namespaces need root")
	}
	l := New(t)
	t.Cleanup(l.Close)
	return l
}

// Two hosts that use Linux's own VXLAN exchange pings, iperf3 data and raw frames.
func TestLinuxToLinux(t *testing.T) {
	l := newLab(t)
	a, b, ga, gb := l.Host("a"), l.Host("b"), l.Host("ga"), l.Host("gb")
	l.Wire(a, "u0", b, "u0", 1600)
	a.Address("u0", "172.16.0.1/24")
	b.Address("u0", "172.16.0.2/24")
	a.LinuxVTEP(ga, "10.0.0.1/24", 7, 1500, "u0", "172.16.0.1", "172.16.0.2")
	b.LinuxVTEP(gb, "10.0.0.2/24", 7, 1500, "u0", "172.16.0.2", "172.16.0.1")
	if err := WaitPing(ga, "10.0.0.2", 30*time.Second); err != nil {
		t.Fatal(err)
	}
	p, err := PingAll(ga, "10.0.0.2", 3, "-s", "1472", "-M", "do")
	if err != nil || p.Sent != 3 || p.Received != 3 {
		t.Fatalf("full frames: %+v, %v", p, err)
	}
	if p, err := Ping(ga, "10.0.0.9", 1); err == nil && p.Received != 0 {
		t.Fatalf("nobody answered: %+v", p)
	}
	tcp, err := Iperf(ga, gb, "10.0.0.2", 1)
	if err != nil || tcp.BitsPerSecond < 1e6 {
		t.Fatalf("TCP: %v, %v", tcp, err)
	}
	udp, err := Iperf(gb, ga, "10.0.0.1", 1, "-u", "-b", "10M")
	if err != nil || udp.Datagrams == 0 || udp.BitsPerSecond < 1e6 {
		t.Fatalf("UDP: %v, %v", udp, err)
	}

	in, out := ga.Raw("eth0"), gb.Raw("eth0")
	frame := append(bytes.Repeat([]byte{0xff}, 6), "\x02\x00\x00\x00\x00\x01\x81\x00\x00\x05\x88\xb5tagged frame, through and through, with its tag in place"...)
	if err := in.Send(frame); err != nil {
		t.Fatal(err)
	}
	got, err := out.Match(30*time.Second, func(f []byte) bool { return bytes.Contains(f, []byte("tagged frame")) })
	if err != nil || !bytes.Equal(got, frame) {
		t.Fatalf("raw: %v: sent\n%x, got\n%x", err, frame, got)
	}
}

// A repeated command that adds or deletes something succeeds if the first attempt has taken
// effect.
func TestRepetition(t *testing.T) {
	for _, c := range []struct{ args, want string }{
		{"add-port p type=tap", "add-port --may-exist p type=tap"},
		{"del-port p", "del-port --if-exists p"},
		{"add-br b --datapath-id 77", "add-br --may-exist b --datapath-id 77"},
		{"del-br b", "del-br --if-exists b"},
		{"dump-flows", "dump-flows"},
	} {
		if got := strings.Join(repetition(strings.Fields(c.args)), " "); got != c.want {
			t.Errorf("%s is repeated as %s, want %s", c.args, got, c.want)
		}
	}
}

// A repeated command that fails because its group, meter or mapping exists counts as a success.
// Other errors are failures.
func TestApplied(t *testing.T) {
	for _, c := range []struct {
		args, stderr string
		want         bool
	}{
		{"add-group group_id=1,type=all", "weft: group 1: expected a number that no group has", true},
		{"add-meter meter=1", "weft: meter 1: expected a number that no meter has", true},
		{"add-tlv-map {class=1,type=1,len=4}->tun_metadata0", "weft: x: the field is mapped already: x; delete this mapping first", true},
		{"add-group group_id=1,type=all", "weft: group 1: too many groups", false},
		{"mod-group group_id=1,type=all", "weft: group 1: expected a number that no group has", false},
		{"dump-flows", "", false},
	} {
		if got := applied(strings.Fields(c.args), c.stderr); got != c.want {
			t.Errorf("%s with %q: %v, want %v", c.args, c.stderr, got, c.want)
		}
	}
}

// A virtual machine boots, runs commands and reboots.
func TestVM(t *testing.T) {
	l := newLab(t)
	if !Have("qemu-system-x86_64") {
		t.Skip("QEMU is not installed; run scripts/setup")
	}
	h := l.Host("h")
	accel, reason := l.Accelerator()
	t.Logf("accelerator %s: %s", accel, reason)
	vm := h.VM(VMConfig{Name: "vm"})
	for range 2 {
		if out := vm.Run("busybox", "uname", "-r"); !strings.Contains(out, "cloud") {
			t.Fatalf("uname -r: %q", out)
		}
		if out, err := vm.Try("false"); err == nil {
			t.Fatalf("a program that is not there ran: %q", out)
		}
		if p, err := PingAll(vm, "127.0.0.1", 2); err != nil || p.Received != 2 {
			t.Fatalf("ping: %+v, %v", p, err)
		}
		if f, err := Iperf(vm, vm, "127.0.0.1", 1); err != nil || f.BitsPerSecond == 0 {
			t.Fatalf("iperf3: %v, %v", f, err)
		}
		vm.Reboot()
	}
}

// inNamespace starts a process that sleeps in a new network namespace. It returns when the
// process is in the namespace.
func inNamespace(t *testing.T, ns string) *exec.Cmd {
	t.Helper()
	if out, err := exec.Command("ip", "netns", "add", ns).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	t.Cleanup(func() { removeNamespace(ns) })
	sleeper := exec.Command("ip", "netns", "exec", ns, "sleep", "600")
	if err := sleeper.Start(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the sleeper is in its namespace", func() bool { return len(namespacePIDs(ns)) > 0 })
	return sleeper
}

func eventually(t *testing.T, name string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(startLimit); !ok(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("does not come: %s", name)
		}
	}
}

// sweep removes only namespaces and files of processes that no longer run.
func TestSweep(t *testing.T) {
	newLab(t)
	dead := exec.Command("true")
	if err := dead.Run(); err != nil {
		t.Fatal(err)
	}
	live := fmt.Sprintf("weft%d-99-live", os.Getppid())
	inNamespace(t, live)
	for _, stale := range []string{
		fmt.Sprintf("weft%d-1-stale", dead.Process.Pid),
		fmt.Sprintf("weft-t%d-1", dead.Process.Pid), // of internal/testnet
		fmt.Sprintf("weft%d-98-stale", os.Getpid()), // of an earlier program
	} {
		sleeper := inNamespace(t, stale)
		sweep()
		if err := sleeper.Wait(); err == nil {
			t.Errorf("%s: the sleeper slept out", stale)
		}
		if _, err := os.Stat("/run/netns/" + stale); err == nil {
			t.Errorf("the namespace %s stayed", stale)
		}
	}
	if _, err := os.Stat("/run/netns/" + live); err != nil {
		t.Error("a living process's namespace went")
	}
}

// killedEnv is set in the process that TestGuard kills.
const killedEnv = "WEFT_LAB_KILLED"

// A program that is killed leaves neither namespaces, nor cgroups, nor files, nor processes:
// its guard removes them.
func TestGuard(t *testing.T) {
	newLab(t)
	killed := exec.Command(os.Args[0])
	killed.Env = append(os.Environ(), killedEnv+"=1")
	if err := killed.Start(); err != nil {
		t.Fatal(err)
	}
	prefix := fmt.Sprintf("weft%d-1", killed.Process.Pid)
	ns, dir := prefix+"-host", filepath.Join(os.TempDir(), prefix)
	pid := 0
	eventually(t, "the lab's process runs", func() bool {
		for _, p := range namespacePIDs(ns) { // a program that sets up the namespace may be there, too
			if name, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", p)); string(name) == "sleep\n" {
				pid = p
			}
		}
		return pid != 0
	})
	if _, err := os.Stat(dir); err != nil {
		t.Error(err)
	}
	if root := GroupRoot(); root != "" {
		if _, err := os.Stat(filepath.Join(root, prefix, "inner")); err != nil {
			t.Error(err)
		}
	}
	_ = killed.Process.Kill()
	_ = killed.Wait()
	left := []string{"/run/netns/" + ns, dir, fmt.Sprintf("/proc/%d", pid)}
	if root := GroupRoot(); root != "" {
		left = append(left, filepath.Join(root, prefix))
	}
	for _, path := range left {
		eventually(t, path+" goes", func() bool { _, err := os.Lstat(path); return err != nil })
	}
}

// busybox cpio can read the archive.
func TestCpio(t *testing.T) {
	var archive bytes.Buffer
	c := newCpioWriter(&archive)
	c.File("a/b/three", []byte("abc"))
	c.File("a/b/four", []byte("abcd"))
	c.File("empty", nil)
	c.Symlink("a/link", "b/three")
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	if !Have("busybox") {
		t.Skip("busybox is not installed; run scripts/setup")
	}
	dir := t.TempDir()
	cmd := exec.Command("busybox", "cpio", "-id")
	cmd.Dir, cmd.Stdin = dir, &archive
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	for name, want := range map[string]string{"a/b/three": "abc", "a/b/four": "abcd", "empty": "", "a/link": "abc"} {
		if got, err := os.ReadFile(filepath.Join(dir, name)); err != nil || string(got) != want {
			t.Errorf("%s: %q, %v; want %q", name, got, err, want)
		}
	}
}

func TestParsePing(t *testing.T) {
	p, ok := parsePing("5 packets transmitted, 4 received, 20% packet loss, time 401ms\nrtt min/avg/max/mdev = 0.021/0.034/0.045/0.009 ms\n")
	if want := (Pings{Sent: 5, Received: 4, AvgMS: 0.034}); !ok || p != want {
		t.Errorf("got %+v, %v; want %+v", p, ok, want)
	}
	if _, ok := parsePing("ping: unknown host"); ok {
		t.Error("an error counted as a result")
	}
}

// A late reply counts, but a reply to a later request does not.
func TestParsePings(t *testing.T) {
	const text = "64 bytes from 10.0.0.2: icmp_seq=1 ttl=64 time=0.1 ms\n64 bytes from 10.0.0.2: icmp_seq=1 ttl=64 time=0.2 ms (DUP!)\n" +
		"From 10.0.0.1 icmp_seq=2 Destination Host Unreachable\n64 bytes from 10.0.0.2: icmp_seq=4 ttl=64 time=99 ms\n" +
		"64 bytes from 10.0.0.2: icmp_seq=3 ttl=64 time=200 ms\n5 packets transmitted, 3 received, 40% packet loss, time 401ms\n"
	if p, ok := parsePings(text, 3); !ok || p.Sent != 3 || p.Received != 2 {
		t.Errorf("got %+v, %v", p, ok)
	}
}

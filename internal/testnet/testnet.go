// SPDX-License-Identifier: Apache-2.0

// Package testnet gives tests their own named network namespaces. Only tests may
// import it.
package testnet

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// Namespace is a network namespace whose loopback device is up. It is deleted at the
// end of the test.
type Namespace struct {
	// Name is the name of the namespace for "ip netns". It is unique on this machine.
	Name string
	t    testing.TB
}

var count atomic.Uint32

// NeedsRoot skips the test if the process does not run as root. It logs the reason.
func NeedsRoot(t testing.TB, reason string) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root: " + reason)
	}
}

// New creates a network namespace. It skips the test if the process does not run as
// root.
func New(t testing.TB) *Namespace {
	t.Helper()
	NeedsRoot(t, "makes network namespaces")
	n := &Namespace{Name: fmt.Sprintf("weft-t%d-%d", os.Getpid(), count.Add(1)), t: t}
	t.Cleanup(func() {
		if err := netns.DeleteNamed(n.Name); err != nil && !os.IsNotExist(err) {
			t.Errorf("namespace %s: %v", n.Name, err)
		}
	})
	// netns.NewNamed moves the thread into the new namespace; hold moves it back later.
	back := hold(t)
	h, err := netns.NewNamed(n.Name)
	back()
	if err != nil {
		t.Fatalf("namespace %s: %v", n.Name, err)
	}
	h.Close()
	n.Exec("ip", "link", "set", "lo", "up")
	return n
}

// hold locks the calling goroutine to its thread. The function that it returns moves the thread back
// to the network namespace that it had, and unlocks the goroutine.
func hold(t testing.TB) func() {
	runtime.LockOSThread()
	old, err := netns.Get()
	if err != nil {
		runtime.UnlockOSThread()
		t.Fatalf("own namespace: %v", err)
	}
	return func() {
		if err := netns.Set(old); err != nil {
			panic(err) // other tests must not run on this thread in the wrong namespace
		}
		old.Close()
		runtime.UnlockOSThread()
	}
}

// Do calls f on the calling goroutine, whose thread is in the namespace meanwhile. Sockets that f
// opens stay in the namespace. Goroutines that f starts run outside of it.
func (n *Namespace) Do(f func()) {
	n.t.Helper()
	defer hold(n.t)()
	h, err := netns.GetFromName(n.Name)
	if err != nil {
		n.t.Fatalf("namespace %s: %v", n.Name, err)
	}
	err = netns.Set(h)
	h.Close()
	if err != nil {
		n.t.Fatalf("namespace %s: %v", n.Name, err)
	}
	f()
}

// Command returns a command that will run in the namespace. The caller starts it.
func (n *Namespace) Command(args ...string) *exec.Cmd {
	return exec.Command("ip", append([]string{"netns", "exec", n.Name}, args...)...)
}

// Exec runs a command in the namespace and returns its output. If the command fails,
// the test ends.
func (n *Namespace) Exec(args ...string) string {
	n.t.Helper()
	out, err := n.Command(args...).CombinedOutput()
	if err != nil {
		n.t.Fatalf("%s: %s: %v\n%s", n.Name, strings.Join(args, " "), err, out)
	}
	return string(out)
}

// Join connects two namespaces by a veth pair with these device names. It brings both devices up. They
// have no link-local IPv6 addresses.
func Join(a *Namespace, devA string, b *Namespace, devB string) {
	a.t.Helper()
	a.Exec("ip", "link", "add", devA, "type", "veth", "peer", "name", devB, "netns", b.Name)
	a.Exec("ip", "link", "set", devA, "addrgenmode", "none", "up")
	b.Exec("ip", "link", "set", devB, "addrgenmode", "none", "up")
}

// WithoutBPF calls f on a thread that lacks the capabilities to load BPF programs. It skips the test
// if every user may load them.
func WithoutBPF(t testing.TB, f func()) {
	t.Helper()
	if text, err := os.ReadFile("/proc/sys/kernel/unprivileged_bpf_disabled"); err == nil && strings.TrimSpace(string(text)) == "0" {
		t.Skip("kernel.unprivileged_bpf_disabled=0: every user may load the program")
	}
	done := make(chan error, 1)
	go func() {
		defer close(done)      // also if f ends the test, which ends the goroutine
		runtime.LockOSThread() // the thread ends with the goroutine
		header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
		var sets [2]unix.CapUserData
		err := unix.Capget(&header, &sets[0])
		if err == nil {
			for _, c := range []int{unix.CAP_BPF, unix.CAP_SYS_ADMIN} {
				sets[c/32].Effective &^= 1 << (c % 32)
			}
			err = unix.Capset(&header, &sets[0])
		}
		if err == nil {
			f()
		}
		done <- err
	}()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

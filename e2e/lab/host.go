// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/vishvananda/netns"
)

// Guest is anything in the lab that runs commands: a Host, a VM, or a Namespace inside a
// Machine.
type Guest interface {
	// Try runs a command and returns its output. If the command fails, the error
	// includes the output.
	Try(args ...string) (string, error)
	// Spawn starts a command in the background. It runs until the lab closes.
	Spawn(args ...string)
	// String returns the guest's name, for messages.
	String() string
}

// Host is a network namespace that stands for a host or a guest.
type Host struct {
	Name string
	NS   string // name of the namespace for the command ip netns
	lab  *Lab
}

// Host adds a network namespace to the lab. IPv6 is off until EnableIPv6, because
// neighbour discovery would disturb tests that count frames.
func (l *Lab) Host(name string) *Host {
	l.T.Helper()
	h := &Host{Name: name, NS: l.prefix + "-" + name, lab: l}
	l.mu.Lock()
	if l.closed {
		l.mu.Unlock()
		l.T.Fatalf("lab: closed")
	}
	l.hosts = append(l.hosts, h)
	l.mu.Unlock()
	l.run("ip", "netns", "add", h.NS)
	h.sysctl("net/ipv6/conf/all/disable_ipv6", "1")
	h.sysctl("net/ipv6/conf/default/disable_ipv6", "1")
	h.Run("ip", "link", "set", "lo", "up")
	return h
}

func (h *Host) String() string { return h.Name }

// EnableIPv6 turns IPv6 on in the namespace. It turns duplicate address detection off, because
// the detection takes time.
func (h *Host) EnableIPv6() {
	h.lab.T.Helper()
	for _, which := range []string{"all", "default"} {
		h.sysctl("net/ipv6/conf/"+which+"/accept_dad", "0")
		h.sysctl("net/ipv6/conf/"+which+"/disable_ipv6", "0")
	}
}

func (h *Host) sysctl(name, value string) {
	h.lab.T.Helper()
	err := h.Do(func() error { return os.WriteFile("/proc/sys/"+name, []byte(value), 0) })
	if err != nil {
		h.lab.T.Fatalf("lab: %s: %v", h.Name, err)
	}
}

// Wire connects two hosts by a veth pair.
func (l *Lab) Wire(a *Host, devA string, b *Host, devB string, mtu int) {
	l.T.Helper()
	l.run("ip", "link", "add", devA, "mtu", fmt.Sprint(mtu), "netns", a.NS,
		"type", "veth", "peer", "name", devB, "mtu", fmt.Sprint(mtu), "netns", b.NS)
	a.Run("ip", "link", "set", devA, "up")
	b.Run("ip", "link", "set", devB, "up")
}

// Address assigns cidr, an address with prefix length, to a device. It brings the
// device up.
func (h *Host) Address(dev, cidr string) {
	h.lab.T.Helper()
	h.Run("ip", "address", "add", cidr, "dev", dev)
	h.Run("ip", "link", "set", dev, "up")
}

// NoOffloads turns off the offloads of a veth device, so that it sends frames with
// complete checksums, as a real network card does. Otherwise an AF_XDP socket at the
// peer would receive incomplete frames.
func (h *Host) NoOffloads(dev string) {
	h.lab.T.Helper()
	h.Run("ethtool", "-K", dev, "tx", "off", "tso", "off", "gso", "off")
}

// LinuxVTEP sets up Linux's own VXLAN on the host, so that Weft can be tested against it. It adds a
// bridge, and a vxlan device for the tunnel to "remote" over the device dev. The guest's eth0, with the
// address cidr, is a port of the bridge.
func (h *Host) LinuxVTEP(guest *Host, cidr string, vni, mtu int, dev, local, remote string) {
	h.lab.T.Helper()
	bridge, vxlan, tail := fmt.Sprint("br", vni), fmt.Sprint("vx", vni), "p-"+guest.Name
	h.NoOffloads(dev)
	h.Run("ip", "link", "add", bridge, "type", "bridge")
	h.Run("ip", "link", "add", vxlan, "type", "vxlan", "id", fmt.Sprint(vni),
		"local", local, "remote", remote, "dstport", "4789", "dev", dev)
	h.Run("ip", "link", "set", vxlan, "mtu", fmt.Sprint(mtu), "master", bridge, "up")
	h.lab.Wire(h, tail, guest, "eth0", mtu)
	h.Run("ip", "link", "set", tail, "master", bridge)
	h.Run("ip", "link", "set", bridge, "up")
	guest.Address("eth0", cidr)
}

// Do calls f on a thread in the host's network namespace. Sockets that f opens stay in
// the namespace.
func (h *Host) Do(f func() error) error {
	errs := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // without UnlockOSThread, the thread ends with its goroutine
		ns, err := netns.GetFromName(h.NS)
		if err != nil {
			errs <- fmt.Errorf("namespace %s: %w", h.NS, err)
			return
		}
		defer ns.Close()
		if err := netns.Set(ns); err != nil {
			errs <- fmt.Errorf("namespace %s: %w", h.NS, err)
			return
		}
		errs <- f()
	}()
	return <-errs
}

// command returns a command that runs in the host's namespace. It has a process group
// of its own, so that Ctrl-C does not reach it and the lab can end all commands in
// order.
func (h *Host) command(args ...string) *exec.Cmd {
	return h.commandContext(context.Background(), args...)
}

// commandContext returns a command like that of the method command. When ctx ends, it kills the
// command's process group.
func (h *Host) commandContext(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "ip", append([]string{"netns", "exec", h.NS}, args...)...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	// limits the wait for child processes, which may keep the output open
	cmd.WaitDelay = 10 * time.Second
	return cmd
}

// Run runs a command and returns its output. If the command fails, the test ends.
func (h *Host) Run(args ...string) string {
	h.lab.T.Helper()
	out, err := h.Try(args...)
	if err != nil {
		h.lab.T.Fatalf("%s: %v", h.Name, err)
	}
	return out
}

const tryLimit = 3 * time.Minute

// Try runs a command in the host's namespace, for at most tryLimit, and returns its output.
func (h *Host) Try(args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), tryLimit)
	defer cancel()
	cmd := h.commandContext(ctx, args...)
	out, err := cmd.CombinedOutput()
	if err != nil {
		return string(out), fmt.Errorf("%s: %w: %s", strings.Join(args, " "), err, bytes.TrimSpace(out))
	}
	return string(out), nil
}

// Spawn starts a command in the host's namespace. The command runs in the background until the lab
// closes.
func (h *Host) Spawn(args ...string) {
	h.lab.T.Helper()
	h.Start(args...)
}

// Process is a command that runs in the background in a host's namespace.
type Process struct {
	Name string
	Log  string // file with the output
	cmd  *exec.Cmd
	done chan struct{} // closed at the end of the command
	err  error         // valid once done is closed
}

var processCount struct {
	sync.Mutex
	n int
}

// Start starts a command in the background. Lab.Close ends the command.
func (h *Host) Start(args ...string) *Process {
	h.lab.T.Helper()
	processCount.Lock()
	processCount.n++
	name := fmt.Sprintf("%s-%s.%d.log", h.Name, filepath.Base(args[0]), processCount.n)
	processCount.Unlock()
	p := &Process{Name: strings.Join(args, " "), Log: filepath.Join(h.lab.Dir, name), done: make(chan struct{})}
	log, err := os.Create(p.Log)
	if err != nil {
		h.lab.T.Fatalf("lab: %v", err)
	}
	defer log.Close()
	p.cmd = h.command(args...)
	p.cmd.Stdout, p.cmd.Stderr = log, log
	if !h.lab.cleanup(p.Kill) {
		h.lab.T.Fatalf("lab: closed")
	}
	if err := p.cmd.Start(); err != nil {
		h.lab.T.Fatalf("%s: %s: %v", h.Name, p.Name, err)
	}
	go func() {
		p.err = p.cmd.Wait()
		close(p.done)
	}()
	return p
}

// PID returns the process id of the command.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Signal sends a signal to the command.
func (p *Process) Signal(s syscall.Signal) {
	if p.cmd.Process != nil {
		p.cmd.Process.Signal(s)
	}
}

// Kill kills the process by SIGKILL and waits for its end.
func (p *Process) Kill() {
	if p.cmd.Process != nil {
		p.Signal(syscall.SIGKILL)
		<-p.done
	}
}

// Alive reports whether the process is still running.
func (p *Process) Alive() bool {
	select {
	case <-p.done:
		return false
	default:
		return true
	}
}

// Wait waits until the process has ended, for at most limit. It returns the error with which
// the process ended.
func (p *Process) Wait(limit time.Duration) error {
	select {
	case <-p.done:
		return p.err // nil after exit code 0
	case <-time.After(limit):
		return errors.New("still running")
	}
}

// Output returns what the process has printed so far.
func (p *Process) Output() string {
	data, _ := os.ReadFile(p.Log)
	return string(data)
}

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

// Guest is where commands run: a Host or a VM.
type Guest interface {
	// Try runs a command until it ends and returns what it printed. The error
	// tells a failure together with that.
	Try(args ...string) (string, error)
	// Spawn starts a command that is left to itself until the lab closes.
	Spawn(args ...string)
	// String is its name in messages.
	String() string
}

// Host is a network namespace: a host, or a guest of one.
type Host struct {
	Name string
	NS   string // as ip netns knows it
	lab  *Lab
}

// Host adds a namespace. IPv6 is off in it until EnableIPv6: its neighbour
// discovery would add frames of the kernel's own to those that a test counts.
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

// EnableIPv6 turns IPv6 on, without duplicate address detection's delay.
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

// Wire joins two hosts by a cable, up at both ends.
func (l *Lab) Wire(a *Host, devA string, b *Host, devB string, mtu int) {
	l.T.Helper()
	l.run("ip", "link", "add", devA, "mtu", fmt.Sprint(mtu), "netns", a.NS,
		"type", "veth", "peer", "name", devB, "mtu", fmt.Sprint(mtu), "netns", b.NS)
	a.Run("ip", "link", "set", devA, "up")
	b.Run("ip", "link", "set", devB, "up")
}

// Address gives a device an address (with its prefix length) and sets it up.
func (h *Host) Address(dev, cidr string) {
	h.lab.T.Helper()
	h.Run("ip", "address", "add", cidr, "dev", dev)
	h.Run("ip", "link", "set", dev, "up")
}

// NoOffloads makes the kernel finish checksums and segments before they reach
// dev, as a network card would on the way out. A veth hands them over
// unfinished, and an AF_XDP socket at its other end sees them so.
func (h *Host) NoOffloads(dev string) {
	h.lab.T.Helper()
	h.Run("ethtool", "-K", dev, "tx", "off", "tso", "off", "gso", "off")
}

// LinuxVTEP lays Linux's own VXLAN out on the host: a vxlan device of the given
// id towards remote over dev, in a bridge, in which the guest has a port as
// its eth0, with address cidr.
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

// Do calls f on a thread that is in the namespace. Sockets opened there stay.
func (h *Host) Do(f func() error) error {
	errs := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
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

// command is the command in the namespace, in a process group of its own so
// that Ctrl-C reaches only the lab, which ends things in order.
func (h *Host) command(args ...string) *exec.Cmd {
	return h.commandContext(context.Background(), args...)
}

// commandContext is command; the whole group is killed when ctx ends.
func (h *Host) commandContext(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "ip", append([]string{"netns", "exec", h.NS}, args...)...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	// What it leaves behind may hold its output open.
	cmd.WaitDelay = 10 * time.Second
	return cmd
}

// Run runs a command that must succeed and returns what it printed.
func (h *Host) Run(args ...string) string {
	h.lab.T.Helper()
	out, err := h.Try(args...)
	if err != nil {
		h.lab.T.Fatalf("%s: %v", h.Name, err)
	}
	return out
}

// tryLimit is after how long a command that should end by itself is killed.
const tryLimit = 3 * time.Minute

// Try runs a command and returns what it printed.
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

// Spawn starts a command that runs until the lab closes.
func (h *Host) Spawn(args ...string) {
	h.lab.T.Helper()
	h.Start(args...)
}

// Process is a command in the background.
type Process struct {
	Name string
	Log  string // file with what it prints
	cmd  *exec.Cmd
	done chan struct{} // closed when it ended
	err  error         // how; valid once done
}

var processCount struct {
	sync.Mutex
	n int
}

// Start starts a command in the background. The lab ends it at Close.
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

// PID is the process id of the command.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Signal sends a signal to the command.
func (p *Process) Signal(s syscall.Signal) {
	if p.cmd.Process != nil {
		p.cmd.Process.Signal(s)
	}
}

// Kill ends the process by SIGKILL and waits until it is gone.
func (p *Process) Kill() {
	if p.cmd.Process != nil {
		p.Signal(syscall.SIGKILL)
		<-p.done
	}
}

// Alive tells whether the process still runs.
func (p *Process) Alive() bool {
	select {
	case <-p.done:
		return false
	default:
		return true
	}
}

// Wait waits for the process to end by itself and returns how it did.
func (p *Process) Wait(limit time.Duration) error {
	select {
	case <-p.done:
		return p.err // nil: exit code 0
	case <-time.After(limit):
		return errors.New("still running")
	}
}

// Output is what the process has printed so far.
func (p *Process) Output() string {
	data, _ := os.ReadFile(p.Log)
	return string(data)
}

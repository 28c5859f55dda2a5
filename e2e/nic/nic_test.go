// SPDX-License-Identifier: Apache-2.0

package nic

import (
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	"weft/e2e/lab"
)

// On the driver igb (an emulated Intel 82576), the uplink works in zero-copy mode, with
// one queue for each CPU.
func TestIGB(t *testing.T) {
	uplink(t, "igb", "", func(t *testing.T, h *host) {
		if mode := h.port("uplink").Mode; mode != "zerocopy" {
			t.Errorf("%s: mode %s on igb, want zerocopy:\n%s", h.Name, mode, h.weft("show"))
		}
		if sockets := h.sockets(); len(sockets) != 2 || !allZeroCopy(sockets) {
			t.Errorf("%s: want two sockets with zero-copy, have %v", h.Name, sockets)
		}
	})
}

// On the driver virtio_net, the uplink works in zero-copy mode with one queue, because
// QEMU's socket network has only one.
func TestVirtioNet(t *testing.T) {
	uplink(t, "virtio-net-pci", ",iommu_platform=on,disable-legacy=on", func(t *testing.T, h *host) {
		if mode := h.port("uplink").Mode; mode != "zerocopy" {
			t.Errorf("%s: mode %s on virtio_net, want zerocopy:\n%s", h.Name, mode, h.weft("show"))
		}
		if sockets := h.sockets(); len(sockets) != 1 || !allZeroCopy(sockets) {
			t.Errorf("%s: want one socket with zero-copy, have %v", h.Name, sockets)
		}
	})
}

// socketLine matches an AF_XDP socket in the output of ss. The captured digit says
// whether the socket is zero-copy.
var socketLine = regexp.MustCompile(`zc:([01])`)

func (h *host) sockets() (flags []string) {
	h.t.Helper()
	for _, m := range socketLine.FindAllStringSubmatch(h.Run("ss", "-e", "--xdp"), -1) {
		flags = append(flags, m[1])
	}
	return flags
}

func allZeroCopy(flags []string) bool {
	for _, f := range flags {
		if f != "1" {
			return false
		}
	}
	return len(flags) > 0
}

func uplink(t *testing.T, card, options string, mode func(*testing.T, *host)) {
	left, right := pair(t, card, options)
	left.start()
	right.start()
	left.configure(right)
	right.configure(left)
	reach(t, left.guest, right.guestIP)
	for _, h := range []*host{left, right} {
		mode(t, h)
	}
	steps := []struct {
		name string
		run  func(*testing.T, *host, *host)
	}{
		{"traffic", traffic},
		{"kernel traffic", kernelTraffic},
		{"cable out and in", cableFlap},
		{"link down and up", linkFlap},
		{"engine killed", engineKilled},
		{"control killed", controlKilled},
		{"both killed", bothKilled},
		{"port deleted and added", portAgain},
		{"some of the queues", someQueues},
		{"nothing is left", nothingLeft},
	}
	for _, s := range steps {
		t.Run(s.name, func(t *testing.T) {
			left.t, right.t = t, t
			began := time.Now()
			s.run(t, left, right)
			t.Logf("took %.1f s", time.Since(began).Seconds())
		})
	}
}

// someQueues lets the uplink use only one of the card's two queues. Meanwhile the card's RSS chooses only
// this queue, so that all connections arrive.
func someQueues(t *testing.T, left, right *host) {
	queues := len(left.sockets())
	if queues < 2 {
		t.Log("the card has one queue")
		return
	}
	left.weft("del-port", "uplink")
	left.weft("add-port", "uplink", "type=af_xdp", "dev=eth0", "queues=1", "rss=served")
	if p := left.port("uplink"); p.Mode != "zerocopy" || strings.Contains(p.Detail, "not served") {
		t.Errorf("mode %s: %s", p.Mode, p.Detail)
	}
	reach(t, left.guest, right.guestIP)
	for range 3 { // each connection has another UDP source port in its outer headers
		flood(t, right.guest, left.guest, left.guestIP)
	}
	left.weft("del-port", "uplink")
	left.weft("add-port", "uplink", "type=af_xdp", "dev=eth0")
	if n := len(left.sockets()); n != queues {
		t.Errorf("%d sockets, want %d", n, queues)
	}
	reach(t, left.guest, right.guestIP)
}

func traffic(t *testing.T, left, right *host) {
	ping(t, left.guest, right.guestIP, 10)
	ping(t, right.guest, left.guestIP, 10, "-s", "1472", "-M", "do")
	flood(t, left.guest, right.guest, right.guestIP)
	flood(t, right.guest, left.guest, left.guestIP)
	flood(t, left.guest, right.guest, right.guestIP, "-u", "-b", "10M")
	both := left.port("uplink").Stats
	if both.RxPackets == 0 || both.TxPackets == 0 {
		t.Errorf("the uplink counts %+v", both)
	}
}

// kernelTraffic checks traffic of the host itself on the card: pings of full size, TCP
// and ARP.
func kernelTraffic(t *testing.T, left, right *host) {
	ping(t, left, right.ip, 5, "-s", "1572", "-M", "do")
	left.Run("ip", "neighbour", "flush", "dev", "eth0")
	ping(t, left, right.ip, 2)
	flood(t, left, right, right.ip)
	reach(t, left.guest, right.guestIP)
}

func cableFlap(t *testing.T, left, right *host) {
	left.Plug(false)
	defer left.Plug(true) // even after a failure
	eventually(t, func() error { return left.state("down") })
	if p, err := lab.Ping(left.guest, right.guestIP, 2); err != nil || p.Received != 0 {
		t.Errorf("pings without a cable: %+v, %v", p, err)
	}
	left.Plug(true)
	eventually(t, func() error { return left.state("up") })
	reach(t, left.guest, right.guestIP)
	ping(t, left, right.ip, 3)
}

func linkFlap(t *testing.T, left, right *host) {
	left.Run("ip", "link", "set", "eth0", "down")
	eventually(t, func() error { return left.state("down") })
	left.Run("ip", "link", "set", "eth0", "up")
	eventually(t, func() error { return left.state("up") })
	reach(t, left.guest, right.guestIP)
	reach(t, left, right.ip)
}

func (h *host) state(want string) error {
	p := h.port("uplink")
	if p.State != want {
		return fmt.Errorf("%s: the uplink is %s (%s), want %s", h.Name, p.State, p.Detail, want)
	}
	return nil
}

// engineKilled kills the engine. TCP connections of the kernel survive. The XDP program
// stays, because a new one would reset the card.
func engineKilled(t *testing.T, left, right *host) {
	program := left.program()
	engine := left.engine()
	whileTCP(t, left, right, func() {
		left.kill(engine)
		eventually(t, func() error {
			if now := left.engine(); now == 0 || now == engine {
				return fmt.Errorf("engine %d after %d was killed\n%s", now, engine, left.log())
			}
			return nil
		})
		reach(t, left.guest, right.guestIP)
	})
	if now := left.program(); now != program {
		t.Errorf("XDP program %q where %q was before", now, program)
	}
}

func controlKilled(t *testing.T, left, right *host) {
	program, engine := left.program(), left.engine()
	left.kill(left.weftd)
	ping(t, left.guest, right.guestIP, 5) // the engine continues while control is dead
	left.start()
	ping(t, left.guest, right.guestIP, 5)
	if now := left.engine(); now != engine {
		t.Errorf("engine %d where %d was before", now, engine)
	}
	if now := left.program(); now != program {
		t.Errorf("XDP program %q where %q was before", now, program)
	}
}

// bothKilled kills control and engine. The kernel alone uses the card until the next
// weftd takes over.
func bothKilled(t *testing.T, left, right *host) {
	whileTCP(t, left, right, func() {
		engine := left.engine()
		left.kill(left.weftd)
		left.kill(engine)
		// the kernel detaches the XDP program when its BPF link closes, and this resets
		// the card
		eventually(t, func() error {
			if p, err := lab.Ping(left, right.ip, 3); err != nil || p.Received != 3 {
				return fmt.Errorf("the host's pings without a switch: %+v, %v", p, err)
			}
			return nil
		})
		left.start()
		left.address()
	})
	reach(t, left.guest, right.guestIP)
}

// whileTCP calls fn. It fails the test unless a TCP connection of the host's kernel
// survives the call.
func whileTCP(t *testing.T, left, right *host, fn func()) {
	t.Helper()
	right.Spawn("iperf3", "-s", "-1", "-p", "5190")
	eventually(t, func() error {
		_, err := right.Try("sh", "-c", "ss -Htln | grep -q :5190")
		return err
	})
	left.Spawn("iperf3", "-c", right.ip, "-p", "5190", "-t", "8", "-b", "5M", "--logfile", "/tmp/tcp.log")
	fn()
	eventually(t, func() error {
		if _, err := left.Try("grep", "-q", "iperf Done", "/tmp/tcp.log"); err != nil {
			log, _ := left.Try("cat", "/tmp/tcp.log")
			return fmt.Errorf("the kernel's TCP connection: %s", log)
		}
		return nil
	})
	left.Run("busybox", "rm", "/tmp/tcp.log")
}

func portAgain(t *testing.T, left, right *host) {
	left.weft("del-port", "uplink")
	if p := left.program(); p != "" {
		t.Errorf("the XDP program is still there: %s", p)
	}
	ping(t, left, right.ip, 3)
	left.weft("add-port", "uplink", "type=af_xdp", "dev=eth0")
	reach(t, left.guest, right.guestIP)
}

// nothingLeft checks that SIGINT leaves no process, XDP program, socket or tap.
func nothingLeft(t *testing.T, left, right *host) {
	left.Run("kill", "-INT", fmt.Sprint(left.weftd))
	eventually(t, func() error {
		if out := left.processes(""); out != "" {
			return fmt.Errorf("processes %s", out)
		}
		return nil
	})
	if p := left.program(); p != "" {
		t.Errorf("the XDP program is still there: %s", p)
	}
	if s := left.sockets(); len(s) != 0 {
		t.Errorf("AF_XDP sockets are still there: %v", s)
	}
	if out, err := left.guest.Try("ip", "link", "show", "dev", "eth0"); err == nil {
		t.Errorf("the guest's tap is still there: %s", out)
	}
	if out := left.Run("busybox", "find", "/run", "-type", "s"); strings.TrimSpace(out) != "" {
		t.Errorf("sockets are still there: %s", out)
	}
	ping(t, left, right.ip, 3)
	flood(t, left, right, right.ip)
}

func reach(t testing.TB, from lab.Guest, to string, args ...string) {
	t.Helper()
	if err := lab.WaitPing(from, to, settle, args...); err != nil {
		t.Fatal(err)
	}
}

func ping(t *testing.T, from lab.Guest, to string, count int, args ...string) {
	t.Helper()
	reach(t, from, to)
	lab.MustPing(t, from, to, count, args...)
}

func flood(t *testing.T, from, to lab.Guest, addr string, args ...string) {
	t.Helper()
	lab.MustFlood(t, 1e5, from, to, addr, args...)
}

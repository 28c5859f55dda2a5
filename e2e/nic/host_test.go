// SPDX-License-Identifier: Apache-2.0

// Package nic tests the uplink on real drivers, with network cards that QEMU emulates.
// Two virtual machines run the switch. A cable connects their cards.
package nic

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"weft/api"
	"weft/e2e/lab"
)

func TestMain(m *testing.M) { lab.Main(m) }

// settle is the time limit of effects that normally come at once. It is long because
// QEMU may emulate the CPU in software.
const settle = 60 * time.Second

// host is a virtual machine that runs weftd, with a guest.
//
//	guest ──tap── weftd ── AF_XDP eth0 ══cable══ eth0 AF_XDP ── weftd ──tap── guest
//	10.0.0.1      left     172.16.0.1          172.16.0.2       right      10.0.0.2
type host struct {
	*lab.Machine
	t       testing.TB
	ip      string // IP address of the card eth0
	guestIP string
	guest   *lab.Namespace
	weftd   int // process id of weftd
}

const (
	vni         = 7
	underlayMTU = 1600
	guestMTU    = 1500
)

func pair(t testing.TB, card, options string) (left, right *host) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("end-to-end tests need root")
	}
	l := lab.New(t)
	t.Cleanup(l.Close)
	accel, reason := l.Accelerator()
	t.Logf("virtual machines under %s: %s", accel, reason)
	outside := l.Host("outside")
	began := time.Now()
	var hosts []*host
	for try := 1; ; try++ {
		var err error
		if hosts, err = boot(t, outside, card, options, filepath.Join(l.Dir, "cable")); err == nil {
			break
		}
		if try == boots {
			t.Fatal(err)
		}
		t.Logf("boot %d of at most %d: %v", try, boots, err)
		for _, h := range hosts {
			h.Kill()
		}
	}
	for _, h := range hosts {
		h.Run("ip", "address", "add", h.ip+"/24", "dev", "eth0")
		h.Run("ip", "link", "set", "eth0", "mtu", strconv.Itoa(underlayMTU), "up")
	}
	t.Logf("both hosts are up after %.1f s, kernel %s", time.Since(began).Seconds(),
		strings.TrimSpace(hosts[0].Run("busybox", "uname", "-r")))
	return hosts[0], hosts[1]
}

// boots is the number of attempts to boot a machine. Each attempt takes at most
// bootLimit.
const (
	boots     = 3
	bootLimit = 60 * time.Second
)

func boot(t testing.TB, outside *lab.Host, card, options, cable string) (hosts []*host, err error) {
	for i, name := range []string{"left", "right"} {
		m := outside.Machine(lab.MachineConfig{
			Name: name, Card: card, Options: options, MAC: fmt.Sprintf("02:00:00:00:01:%02x", i+1), Cable: cable, Serve: i == 0,
		})
		hosts = append(hosts, &host{Machine: m, t: t, ip: fmt.Sprint("172.16.0.", i+1), guestIP: fmt.Sprint("10.0.0.", i+1)})
	}
	for _, h := range hosts {
		err = errors.Join(err, h.Booted(bootLimit))
	}
	return hosts, err
}

func (h *host) start(options ...string) {
	h.t.Helper()
	out := h.Run("sh", "-c", "weftd --socket /run/weft.sock --state /run/weft "+strings.Join(options, " ")+" >>/tmp/weftd.log 2>&1 </dev/null & echo $!")
	var err error
	if h.weftd, err = strconv.Atoi(strings.TrimSpace(out)); err != nil {
		h.t.Fatal(err)
	}
	eventually(h.t, func() error { _, err := h.Try("weft", "--socket", "/run/weft.sock", "show"); return err })
}

func (h *host) weft(args ...string) string {
	h.t.Helper()
	out, err := h.Try(append([]string{"weft", "--socket", "/run/weft.sock"}, args...)...)
	if err != nil {
		h.t.Fatalf("%s: weft: %v\n%s", h.Name, err, h.log())
	}
	return out
}

func (h *host) log() string {
	out, _ := h.Try("tail", "-n", "40", "/tmp/weftd.log")
	return out
}

func (h *host) configure(peer *host) { h.configureAs(peer, "af_xdp") }

// configureAs sets the switch up with an uplink of the given type.
func (h *host) configureAs(peer *host, uplink string) {
	h.t.Helper()
	h.guest = h.Namespace("guest")
	h.weft("add-port", "uplink", "type="+uplink, "dev=eth0")
	h.weft("add-port", "overlay", "type=vxlan", fmt.Sprint("vni=", vni), "remote="+peer.ip)
	h.weft("add-port", "guest", "type=tap", "dev=eth0", "netns=guest", "mac=02:00:00:00:00:0"+h.ip[len(h.ip)-1:],
		fmt.Sprint("mtu=", guestMTU))
	h.weft("add-flow", "in_port=guest,actions=output:overlay")
	h.weft("add-flow", "in_port=overlay,actions=output:guest")
	h.address()
}

// address configures the guest's tap, which is new after a restart of the switch.
func (h *host) address() {
	h.t.Helper()
	eventually(h.t, func() error {
		out, err := h.guest.Try("ip", "address", "show", "dev", "eth0")
		if err != nil || strings.Contains(out, h.guestIP) {
			return err
		}
		if _, err = h.guest.Try("ip", "address", "add", h.guestIP+"/24", "dev", "eth0"); err != nil {
			return err
		}
		_, err = h.guest.Try("ip", "link", "set", "eth0", "up")
		return err
	})
}

func (h *host) show() (s api.Show) {
	h.t.Helper()
	if err := json.Unmarshal([]byte(h.weft("show", "--json")), &s); err != nil {
		h.t.Fatal(err)
	}
	return s
}

func (h *host) port(name string) api.Port {
	h.t.Helper()
	for _, p := range h.show().Ports {
		if p.Name == name {
			return p
		}
	}
	h.t.Fatalf("%s: no port %s in:\n%s", h.Name, name, h.weft("show"))
	return api.Port{}
}

func (h *host) kill(pid int) {
	h.t.Helper()
	h.Run("kill", "-9", strconv.Itoa(pid))
}

func (h *host) engine() int {
	h.t.Helper()
	out, _ := h.Try("cat", "/run/weft/engine.lock")
	if pid := strings.TrimSpace(out); slices.Contains(strings.Fields(h.processes(" engine")), pid) {
		n, _ := strconv.Atoi(pid)
		return n
	}
	return 0
}

func (h *host) processes(text string) string {
	h.t.Helper()
	out, _ := h.Try("sh", "-c", `for p in $(busybox pidof weftd); do
		busybox tr '\0' ' ' </proc/$p/cmdline | grep -q 'weftd`+text+`' && echo $p; done`)
	return strings.TrimSpace(out)
}

func (h *host) program() string {
	h.t.Helper()
	out := h.Run("ip", "-d", "link", "show", "dev", "eth0")
	_, after, found := strings.Cut(out, "prog/xdp")
	if !found {
		return ""
	}
	line, _, _ := strings.Cut(after, "\n")
	return strings.TrimSpace(line)
}

func eventually(t testing.TB, f func() error) {
	t.Helper()
	var err error
	for end := time.Now().Add(settle); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		if err = f(); err == nil {
			return
		}
	}
	t.Fatalf("after %v: %v", settle, err)
}

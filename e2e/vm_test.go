// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"weft/e2e/lab"
)

const (
	vmIP  = "10.0.0.3"
	vmMAC = "02:00:00:00:00:03"
)

// newVM boots a virtual machine that is connected to the port vm. The returned function
// boots the machine again.
func newVM(t *testing.T, s *site, serve bool) (*lab.VM, func() *lab.VM) {
	t.Helper()
	if !lab.Have("qemu-system-x86_64") {
		t.Skip("QEMU is not installed; run scripts/setup")
	}
	accel, reason := s.lab.Accelerator()
	t.Logf("virtual machine under %s: %s", accel, reason)
	socket := filepath.Join(s.lab.Dir, "vm.sock")
	mode := "server"
	if serve {
		mode = "client"
	}
	s.weft.Weft("add-port", "vm", "type=vhost-user", "path="+socket, "mode="+mode)
	s.weft.Weft("del-flows")
	s.weft.Weft("add-flow", "actions=normal")
	boot := func() *lab.VM {
		vm := s.host.VM(lab.VMConfig{Name: "vm", MAC: vmMAC, Vhost: socket, Serve: serve})
		vm.Address(vmIP+"/24", guestMTU)
		return vm
	}
	return boot(), boot
}

func talk(t *testing.T, s *site, vm *lab.VM) {
	t.Helper()
	reach(t, vm, remoteIP)
	reach(t, vm, guestIP)
	lab.MustPing(t, vm, remoteIP, 5, "-s", "1472", "-M", "do")
	lab.MustPing(t, s.remote, vmIP, 5)
	lab.MustPing(t, s.guest, vmIP, 5, "-s", "1472", "-M", "do")
}

// The traffic of a virtual machine, with and without VLAN tags, survives the death of
// each process of the switch.
func TestVM(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	vm, _ := newVM(t, s, false)
	talk(t, s, vm)
	flood(t, vm, s.remote, remoteIP)
	flood(t, s.remote, vm, vmIP)
	flood(t, vm, s.guest, guestIP)
	flood(t, vm, s.remote, remoteIP, "-u", "-b", "20M")
	flood(t, s.remote, vm, vmIP, "-u", "-b", "20M")

	t.Run("weft bench in it", func(t *testing.T) { benchInGuest(t, s, vm) })
	t.Run("control killed", func(t *testing.T) {
		outage := vmOutage(t, s, vm, func() {
			s.weft.Control().Kill()
			time.Sleep(time.Second)
			s.weft.Start()
		})
		if outage != 0 {
			t.Errorf("the machine lost pings for %v while control was away", outage)
		}
	})
	t.Run("engine killed", func(t *testing.T) {
		t.Logf("the engine's death cost the machine %v", vmOutage(t, s, vm, s.weft.KillEngine))
	})
	t.Run("both killed", func(t *testing.T) {
		s.weft.Control().Kill()
		s.weft.KillEngine()
		time.Sleep(200 * time.Millisecond)
		s.weft.Start() // QEMU reconnects once a second
		s.readdress()
		reach(t, vm, remoteIP)
	})
	talk(t, s, vm)
}

// vmOutage calls the function happens, and returns how long pings were not answered. A
// TCP connection must survive the call.
func vmOutage(t *testing.T, s *site, vm *lab.VM, happens func()) time.Duration {
	t.Helper()
	const pings = 100
	type result struct {
		lab.Pings
		err error
	}
	done := make(chan result, 1)
	tcpPort := strconv.Itoa(5300 + int(time.Now().UnixNano()%100))
	s.remote.ServeIperf(tcpPort)
	vm.Spawn("iperf3", "-c", remoteIP, "-p", tcpPort, "-t", "6", "-b", "5M", "--logfile", "/tmp/tcp.log")
	go func() {
		counts, err := vm.Pings(remoteIP, pings, pingGap.Seconds())
		done <- result{counts, err}
	}()
	time.Sleep(1500 * time.Millisecond)
	happens()
	r := <-done
	if r.err != nil {
		t.Fatal(r.err)
	}
	eventually(t, func() error {
		out, err := vm.Try("busybox", "grep", "iperf Done", "/tmp/tcp.log")
		if err != nil {
			log, _ := vm.Try("busybox", "cat", "/tmp/tcp.log")
			return fmt.Errorf("the machine's TCP connection did not live through it: %s%s", out, log)
		}
		return nil
	})
	vm.Run("busybox", "rm", "/tmp/tcp.log")
	return time.Duration(pings-r.Received) * pingGap
}

// vmQueues is the number of queue pairs of the guest of TestVMQueues. Its state does not
// fit one message to the engine.
const vmQueues = 40

// A guest with many queue pairs uses all of them, also after the death of each process.
// QEMU sends its memory table once for each pair. The guest enables the pairs later.
func TestVMQueues(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	if !lab.Have("qemu-system-x86_64") {
		t.Skip("QEMU is not installed; run scripts/setup")
	}
	socket := filepath.Join(s.lab.Dir, "vm.sock")
	s.weft.Weft("add-port", "vm", "type=vhost-user", "path="+socket, "mode=server", "queues=128")
	s.weft.Weft("del-flows")
	s.weft.Weft("add-flow", "actions=normal")
	vm := s.host.VM(lab.VMConfig{Name: "vm", MAC: vmMAC, Vhost: socket, Queues: vmQueues})
	vm.Address(vmIP+"/24", guestMTU)
	talk(t, s, vm)
	vm.Run("ethtool", "-L", "eth0", "combined", strconv.Itoa(vmQueues))
	talk(t, s, vm)
	// the guest spreads eight TCP connections over its queues
	flood(t, vm, s.guest, guestIP, "-P", "8")
	flood(t, s.guest, vm, vmIP, "-P", "8")
	if n := busyQueues(t, vm); n < 2 {
		t.Errorf("the machine has sent by %d queues, expected several", n)
	}
	s.weft.KillEngine()
	reach(t, vm, remoteIP)
	s.weft.Control().Kill()
	s.weft.Start()
	talk(t, s, vm)
	if log := s.weft.Control().Output(); strings.Contains(log, "cannot") {
		t.Errorf("the next control process has not taken the machine over:\n%s", log)
	}
	vm.Reboot()
	vm.Address(vmIP+"/24", guestMTU)
	vm.Run("ethtool", "-L", "eth0", "combined", strconv.Itoa(vmQueues))
	talk(t, s, vm)
	if log := s.weft.Control().Output(); strings.Contains(log, "overlaps") {
		t.Errorf("the switch refused memory:\n%s", log)
	}
}

// busyQueues returns the number of the guest's transmit queues that have sent frames, according
// to the guest's driver.
func busyQueues(t *testing.T, vm *lab.VM) (n int) {
	t.Helper()
	stats := vm.Run("ethtool", "-S", "eth0")
	for line := range strings.Lines(stats) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), ": ")
		queue, isCount := strings.CutSuffix(name, "_packets")
		if packets, _ := strconv.Atoi(value); isCount && strings.HasPrefix(queue, "tx") && packets > 0 {
			n++
		}
	}
	if n == 0 {
		t.Fatalf("no transmit queue has sent anything:\n%s", stats)
	}
	return n
}

// If QEMU owns the socket, the guest can reboot, and another machine can later take its
// place.
func TestVMComesAndGoes(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	vm, boot := newVM(t, s, true)
	talk(t, s, vm)

	vm.Reboot()
	vm.Address(vmIP+"/24", guestMTU)
	talk(t, s, vm)

	vm.Kill()
	reach(t, s.guest, remoteIP) // the other guests are not affected
	eventually(t, func() error {
		if p := portOf(t, s.weft, "vm"); p.State == "up" {
			return fmt.Errorf("port vm is %s (%s) without a machine", p.State, p.Detail)
		}
		return nil
	})
	vm = boot()
	talk(t, s, vm)
	flood(t, vm, s.remote, remoteIP)
}

// Two virtual machines exchange frames. A paused machine does not disturb the other
// one.
func TestTwoMachines(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	vm, _ := newVM(t, s, false)
	socket := filepath.Join(s.lab.Dir, "vm2.sock")
	s.weft.Weft("add-port", "vm2", "type=vhost-user", "path="+socket, "mode=server")
	other := s.host.VM(lab.VMConfig{Name: "vm2", MAC: "02:00:00:00:00:04", Vhost: socket})
	const otherIP = "10.0.0.4"
	other.Address(otherIP+"/24", guestMTU)
	reach(t, vm, otherIP)
	lab.MustPing(t, vm, otherIP, 5, "-s", "1472", "-M", "do")
	was := portOf(t, s.weft, "vm").Stats
	flood(t, vm, other, otherIP)
	flood(t, s.guest, other, otherIP)
	flood(t, s.remote, other, otherIP) // frames from the tunnel are coalesced
	now := portOf(t, s.weft, "vm").Stats
	if n, bytes := now.RxPackets-was.RxPackets, now.RxBytes-was.RxBytes; bytes < 4000*n {
		t.Errorf("the machine sent %d frames of %d bytes in all: no large ones", n, bytes)
	}
	for _, m := range []*lab.VM{vm, other} {
		if n := checksumErrors(t, m, "busybox", "cat"); n != 0 {
			t.Errorf("%s found %d wrong checksums or headers", m, n)
		}
	}

	for i, m := range []*lab.VM{vm, other} {
		m.Run("ip", "link", "add", "link", "eth0", "name", "eth0.5", "type", "vlan", "id", "5")
		m.Run("ip", "address", "add", fmt.Sprintf("10.5.0.%d/24", i+1), "dev", "eth0.5")
		m.Run("ip", "link", "set", "eth0.5", "up")
	}
	reach(t, vm, "10.5.0.2")
	lab.MustPing(t, vm, "10.5.0.2", 5, "-s", "1472", "-M", "do")

	other.Pause()
	for range 5 { // fill its queue
		lab.Ping(s.guest, otherIP, 1)
	}
	lab.MustPing(t, vm, remoteIP, 5)
	other.Resume()
	reach(t, other, vmIP)
	reach(t, s.guest, otherIP)
}

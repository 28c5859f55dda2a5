// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"weft/e2e/lab"
)

// A virtual machine migrates between two switches while pings and a TCP connection
// run.
//
//	guest ──tap── weftd a ── AF_XDP u0 ══veth══ u0 ── weftd b
//	                 └── machine, before               └── after
func TestMove(t *testing.T) {
	t.Parallel()
	if !lab.Have("qemu-system-x86_64") {
		t.Skip("QEMU is not installed; run scripts/setup")
	}
	l := newLab(t)
	a, b, guest := l.Host("a"), l.Host("b"), l.Host("guest")
	l.Wire(a, "u0", b, "u0", underlayMTU)
	a.Address("u0", hostIP+"/24")
	b.Address("u0", peerIP+"/24")
	socket := map[*lab.Host]string{}
	daemon := map[*lab.Host]*lab.Daemon{}
	for h, other := range map[*lab.Host]string{a: peerIP, b: hostIP} {
		d := h.Weftd()
		socket[h] = filepath.Join(l.Dir, h.Name+"-vm.sock")
		d.Weft("add-port", "uplink", "type=af_xdp", "dev=u0")
		d.Weft("add-port", "overlay", "type=vxlan", fmt.Sprint("vni=", siteVNI), "remote="+other)
		d.Weft("add-port", "vm", "type=vhost-user", "path="+socket[h], "mode=server")
		d.Weft("add-flow", "actions=normal")
		daemon[h] = d
	}
	daemon[a].Tap(guest, guestMAC, guestIP+"/24", guestMTU)
	accel, reason := l.Accelerator()
	t.Logf("virtual machine under %s: %s", accel, reason)
	vm := a.VM(lab.VMConfig{Name: "before", MAC: vmMAC, Vhost: socket[a]})
	vm.Address(vmIP+"/24", guestMTU)
	reach(t, guest, vmIP)

	const pings, seconds = 240, 12
	guest.ServeIperf("5400")
	vm.Spawn("iperf3", "-c", guestIP, "-p", "5400", "-t", strconv.Itoa(seconds), "-b", "5M", "--logfile", "/tmp/tcp.log")
	steady := guest.StartPings(vmIP, pings, pingGap.Seconds())
	time.Sleep(time.Second)
	begin := time.Now()
	vm = vm.Move(b, lab.VMConfig{Name: "after", MAC: vmMAC, Vhost: socket[b]})
	t.Logf("the move took %v", time.Since(begin).Round(time.Millisecond))
	if err := lab.WaitPing(guest, vmIP, settle); err != nil {
		for h, d := range daemon {
			t.Logf("switch %s:\n%s%s", h.Name, d.Weft("dump-ports"), d.Control().Output())
		}
		t.Fatal(err)
	}
	if p := portOf(t, daemon[b], "vm"); p.State != "up" {
		t.Fatalf("port vm of the second switch is %s (%s)", p.State, p.Detail)
	}
	t.Logf("pings were lost for %v", steadyPings(t, steady, pings))
	for end := time.Now().Add(settle + seconds*time.Second); ; time.Sleep(500 * time.Millisecond) {
		out, err := vm.Try("busybox", "grep", "iperf Done", "/tmp/tcp.log")
		if err == nil {
			break
		}
		if time.Now().After(end) {
			log, _ := vm.Try("busybox", "cat", "/tmp/tcp.log")
			t.Fatalf("the machine's TCP connection did not live through the move: %s%s", out, log)
		}
	}
	lab.MustPing(t, guest, vmIP, 5, "-s", "1472", "-M", "do")
}

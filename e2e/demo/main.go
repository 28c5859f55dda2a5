// SPDX-License-Identifier: Apache-2.0

// Command demo demonstrates the switch with real guests and a real overlay, in about
// a minute:
//
//	┌─ namespace host-a ─────────────┐           ┌─ namespace host-b ─────────┐
//	│ vm ──vhost-user─┐              │  underlay │              ┌─tap── guest-b│
//	│ 10.0.0.11     weftd ─ AF_XDP u0├───veth────┤u0 AF_XDP ─ weftd  10.0.0.21 │
//	│ guest-a ──tap───┘  172.31.0.1  │  MTU 1600 │  172.31.0.2                │
//	│ 10.0.0.12                      │           │                            │
//	└────────────────────────────────┘           └────────────────────────────┘
//
// VXLAN over IPv4 adds 50 bytes, so the underlay's MTU of 1600 leaves the guests the
// usual 1500. A guest with a tap is a network namespace, and vm is a virtual machine
// in QEMU.
package main

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"text/tabwriter"
	"time"

	"weft/api"
	"weft/e2e/lab"
)

const (
	underlayMTU = 1600
	guestMTU    = 1500
	vni         = 100
	limit       = 3 * time.Minute
)

var seconds = flag.Int("seconds", 3, "how long each iperf3 runs")

func main() {
	flag.StringVar(&lab.Binaries, "bin", "", "folder of weftd and weft; built from the tree if empty")
	flag.Parse()
	lab.Demonstrate("demo", limit, run)
}

func run() (err error) {
	defer lab.Caught(&err)
	c := lab.Console()
	l := lab.New(c)
	d := &demo{Program: c, lab: l}
	c.Logf("building weftd and weft")
	l.Build()
	d.accelerator()
	d.hosts()
	d.guests()
	d.measure()
	d.report()
	c.Logf("cleaning up")
	l.Close()
	return d.verdict()
}

type guest struct {
	lab.Guest
	addr string
	side string // host on which the guest runs
	port string // kind of the guest's port
}

// result has the measurements from one guest to another.
type result struct {
	from, to guest
	pings    lab.Pings
	tcp, udp lab.Flood
	ran      bool // iperf3 succeeded
	err      error
}

type demo struct {
	lab.Program
	lab       *lab.Lab
	accel     string
	a, b      *lab.Daemon
	guestList []guest
	results   []result
}

func (d *demo) accelerator() {
	accel, reason := d.lab.Accelerator()
	d.accel = map[string]string{"kvm": "KVM", "tcg": "software emulation (TCG)"}[accel]
	d.Logf("virtual machine under %s: %s", d.accel, reason)
}

func (d *demo) hosts() {
	d.Logf("two hosts as network namespaces, joined by a veth of MTU %d", underlayMTU)
	a, b := d.lab.Host("host-a"), d.lab.Host("host-b")
	d.lab.Wire(a, "u0", b, "u0", underlayMTU)
	a.Address("u0", "172.31.0.1/24")
	b.Address("u0", "172.31.0.2/24")
	d.a, d.b = d.start(a), d.start(b)
}

func (d *demo) start(h *lab.Host) *lab.Daemon {
	daemon := h.Weftd()
	daemon.Echo = func(line string) { fmt.Printf("        %s# %s\n", h.Name, line) }
	d.Logf("%s: weftd answers", h.Name)
	return daemon
}

func (d *demo) guests() {
	guestA, guestB := d.lab.Host("guest-a"), d.lab.Host("guest-b")
	socket := filepath.Join(d.lab.Dir, "vm.sock")

	d.a.Weft("add-port", "uplink", "type=af_xdp", "dev=u0")
	d.a.Weft("add-port", "overlay", "type=vxlan", fmt.Sprint("vni=", vni), "remote=172.31.0.2")
	d.a.Weft("add-port", "vm", "type=vhost-user", "path="+socket, "mode=server")
	d.a.Tap(guestA, "02:00:00:00:00:12", "10.0.0.12/24", guestMTU)
	d.a.Weft("add-flow", "actions=normal")

	d.b.Weft("add-port", "uplink", "type=af_xdp", "dev=u0")
	d.b.Weft("add-port", "overlay", "type=vxlan", "vni=flow", "remote=flow")
	d.b.Tap(guestB, "02:00:00:00:00:21", "10.0.0.21/24", guestMTU)
	d.b.Weft("add-flow", fmt.Sprintf("in_port=guest-b,actions=set_field:%d->tun_id,set_field:172.31.0.1->tun_dst,output:overlay", vni))
	d.b.Weft("add-flow", fmt.Sprintf("in_port=overlay,tun_id=%d,tun_src=172.31.0.1,actions=output:guest-b", vni))

	d.Logf("booting the virtual machine (Debian's cloud kernel, the project's own init)")
	vm := d.a.Host.VM(lab.VMConfig{Name: "vm", MAC: "02:00:00:00:00:11", Vhost: socket})
	vm.Address("10.0.0.11/24", guestMTU)
	d.Logf("the virtual machine runs %s", strings.TrimSpace(vm.Run("busybox", "uname", "-sr")))
	d.guestList = []guest{
		{vm, "10.0.0.11", "host-a", "vhost-user"},
		{guestA, "10.0.0.12", "host-a", "tap"},
		{guestB, "10.0.0.21", "host-b", "tap"},
	}
}

func (d *demo) measure() {
	vm, guestA, guestB := d.guestList[0], d.guestList[1], d.guestList[2]
	for _, from := range d.guestList {
		for _, to := range d.guestList {
			if from != to {
				d.results = append(d.results, d.ping(from, to))
			}
		}
	}
	for _, pair := range [][2]guest{{vm, guestB}, {guestB, vm}, {guestA, guestB}} {
		for i := range d.results {
			if r := &d.results[i]; r.from == pair[0] && r.to == pair[1] && r.err == nil {
				d.flood(r)
			}
		}
	}
}

func (d *demo) ping(from, to guest) result {
	r := result{from: from, to: to}
	if r.err = lab.WaitPing(from, to.addr, 30*time.Second); r.err == nil {
		r.pings, r.err = lab.PingAll(from, to.addr, 10)
	}
	if r.err == nil && r.pings.Received < r.pings.Sent {
		r.err = fmt.Errorf("%s: %d of %d pings to %s answered", from, r.pings.Received, r.pings.Sent, to)
	}
	d.Logf("ping %s -> %s: %d of %d answered, %.3f ms", from, to, r.pings.Received, r.pings.Sent, r.pings.AvgMS)
	return r
}

func (d *demo) flood(r *result) {
	if r.tcp, r.err = lab.Iperf(r.from, r.to, r.to.addr, *seconds); r.err != nil {
		return
	}
	d.Logf("iperf3 TCP %s -> %s: %v", r.from, r.to, r.tcp)
	if r.udp, r.err = lab.Iperf(r.from, r.to, r.to.addr, *seconds, "-u", "-b", "100M"); r.err != nil {
		return
	}
	d.Logf("iperf3 UDP %s -> %s: %v", r.from, r.to, r.udp)
	r.ran = true
}

func (d *demo) report() {
	fmt.Println()
	for _, daemon := range []*lab.Daemon{d.a, d.b} {
		fmt.Println(daemon.Weft("dump-flows"))
	}
	modes := map[string]string{"host-a": d.mode(d.a), "host-b": d.mode(d.b)}
	fmt.Printf("\nMeasured (virtual machine under %s; UDP sent at 100 Mb/s)\n\n", d.accel)
	w := tabwriter.NewWriter(os.Stdout, 0, 8, 2, ' ', 0)
	fmt.Fprintln(w, "FROM\tTO\tPING\tTCP\tUDP\tPATH")
	for _, r := range d.results {
		tcp, udp := "-", "-"
		if r.ran {
			tcp, udp = r.tcp.String(), r.udp.String()
		}
		ping := fmt.Sprintf("%.3f ms", r.pings.AvgMS)
		if r.err != nil {
			ping = "FAILED"
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\n", r.from, r.to, ping, tcp, udp, path(r.from, r.to, modes))
	}
	w.Flush()
	fmt.Println()
}

func path(from, to guest, modes map[string]string) string {
	if from.side == to.side {
		return fmt.Sprintf("%s > weft > %s", from.port, to.port)
	}
	return fmt.Sprintf("%s > weft > VXLAN %d > AF_XDP (%s) > veth > AF_XDP (%s) > weft > %s",
		from.port, vni, modes[from.side], modes[to.side], to.port)
}

func (d *demo) mode(daemon *lab.Daemon) string {
	daemon.Echo = nil // the command is not printed, because it is no step of the demonstration
	var ports []api.Port
	daemon.WeftJSON(&ports, "dump-ports", "uplink")
	if len(ports) != 1 {
		d.Fatalf("dump-ports uplink: %d ports", len(ports))
	}
	return ports[0].Mode
}

func (d *demo) verdict() error {
	for _, r := range d.results {
		if r.err != nil {
			return r.err
		}
	}
	return nil
}

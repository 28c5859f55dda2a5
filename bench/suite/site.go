package main

import (
	"errors"
	"fmt"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
)

// site is a switch's host with an uplink (one end of a veth pair, as real an
// uplink as this machine has), and the far end of that: a namespace whose XDP
// program counts frames and drops them.
type site struct {
	netns, uplink string // where the switch runs, and its uplink there
	uplinkMAC     string
	local, remote string // addresses of the tunnel endpoints
	remoteMAC     string
	sink          string // the far end's namespace; its device is farEnd
	counter       *ebpf.Map
	program       *ebpf.Program
	attached      link.Link
}

// farEnd is the sink's end of the uplink.
const farEnd = "u2"

// newSite makes the namespaces, for one turn.
func newSite(r *run) (*site, error) {
	w := &site{netns: "weftbench-h" + r.id, sink: "weftbench-s" + r.id,
		uplink: "u1", local: "172.31.255.1", remote: "172.31.255.2",
		uplinkMAC: "02:00:00:00:ff:01", remoteMAC: "02:00:00:00:ff:02"}
	r.atEnd(w.clear)
	err := all(nil, [][]string{
		{"ip", "netns", "add", w.netns},
		{"ip", "netns", "add", w.sink},
		w.ip("link", "add", w.uplink, "address", w.uplinkMAC, "mtu", "2000", "type", "veth", "peer", "name", farEnd, "netns", w.sink, "address", w.remoteMAC, "mtu", "2000"),
		w.ip("link", "set", "lo", "up"),
		w.ip("link", "set", w.uplink, "up"),
		w.ip("addr", "add", w.local+"/24", "dev", w.uplink),
		w.ip("neigh", "replace", w.remote, "lladdr", w.remoteMAC, "dev", w.uplink, "nud", "permanent"),
		{"ip", "-n", w.sink, "link", "set", farEnd, "up"},
	})
	if err == nil {
		err = w.attachSink()
	}
	return w, err
}

// ip is a command of ip(8) on the switch's host.
func (w *site) ip(args ...string) []string { return append([]string{"ip", "-n", w.netns}, args...) }

// in has a command run on the switch's host; without a site, where it is.
func (w *site) in(args ...string) []string {
	if w == nil {
		return args
	}
	return append([]string{"ip", "netns", "exec", w.netns}, args...)
}

// attachSink puts an XDP program on the far end that counts each frame and
// drops it, so that the far end costs as little as it can.
func (w *site) attachSink() error {
	var err error
	w.counter, err = ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: 8, MaxEntries: 1})
	if err != nil {
		return fmt.Errorf("sink: counter: %w", err)
	}
	const xdpDrop = 1
	w.program, err = ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.XDP, License: "Apache-2.0", Instructions: asm.Instructions{
		asm.StoreImm(asm.RFP, -4, 0, asm.Word),
		asm.LoadMapPtr(asm.R1, w.counter.FD()),
		asm.Mov.Reg(asm.R2, asm.RFP),
		asm.Add.Imm(asm.R2, -4),
		asm.FnMapLookupElem.Call(),
		asm.JEq.Imm(asm.R0, 0, "drop"),
		asm.Mov.Imm(asm.R1, 1),
		asm.AddAtomic.Mem(asm.R0, asm.R1, asm.DWord, 0),
		asm.Mov.Imm(asm.R0, xdpDrop).WithSymbol("drop"),
		asm.Return(),
	}})
	if err != nil {
		return fmt.Errorf("sink: program: %w", err)
	}
	handle, err := netns.GetFromName(w.sink)
	if err != nil {
		return err
	}
	defer handle.Close()
	nl, err := netlink.NewHandleAt(handle)
	if err != nil {
		return err
	}
	defer nl.Close()
	dev, err := nl.LinkByName(farEnd)
	if err != nil {
		return err
	}
	// XDP of the sending side needs the receiving side to have NAPI, which a
	// program on it gives.
	return inNetns(handle, func() error {
		w.attached, err = link.AttachXDP(link.XDPOptions{Program: w.program, Interface: dev.Attrs().Index, Flags: link.XDPDriverMode})
		return err
	})
}

// rateAtPeer is the frames a second that reach the far end.
func (w *site) rateAtPeer(d time.Duration) (float64, error) {
	var before, after uint64
	if err := w.counter.Lookup(uint32(0), &before); err != nil {
		return 0, err
	}
	start := time.Now()
	time.Sleep(d)
	if err := w.counter.Lookup(uint32(0), &after); err != nil {
		return 0, err
	}
	if after == before {
		return 0, errors.New("nothing reached the far end of the tunnel")
	}
	return float64(after-before) / time.Since(start).Seconds(), nil
}

// clear removes all that newSite made.
func (w *site) clear() {
	if w.attached != nil {
		w.attached.Close()
	}
	if w.program != nil {
		w.program.Close()
	}
	if w.counter != nil {
		w.counter.Close()
	}
	command(nil, "ip", "netns", "del", w.netns)
	command(nil, "ip", "netns", "del", w.sink)
}

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

// scenario is one thing measured: frames of one size on one path.
type scenario struct {
	title string
	size  int
	flows func(a, b, tunnel string) []string

	// way is send or receive where the uplink alone is measured, see uplink.go.
	way string

	// With a tunnel: the namespace in which the switch runs, its uplink (a
	// veth), and the other end, whose XDP program counts and drops.
	tunnel        bool
	netns, uplink string
	uplinkMAC     string
	local, remote string
	remoteMAC     string
	sink          string
	counter       *ebpf.Map
	program       *ebpf.Program
	attached      link.Link
}

func scenarios(sizes []int) []*scenario {
	pair := func(a, b, _ string) []string {
		return []string{"in_port=" + a + ",actions=output:" + b, "in_port=" + b + ",actions=output:" + a}
	}
	overlay := func(a, _, tunnel string) []string { return []string{"in_port=" + a + ",actions=output:" + tunnel} }
	var list []*scenario
	for _, size := range sizes {
		list = append(list,
			&scenario{title: fmt.Sprintf("vhost-vhost/%d", size), size: size, flows: pair},
			&scenario{title: fmt.Sprintf("vhost-vxlan-afxdp/%d", size), size: size, flows: overlay, tunnel: true})
		list = append(list, uplinkScenarios(size)...)
	}
	return list
}

// lay makes the namespaces of a scenario with a tunnel: a switch's host and a
// sink, joined by a veth pair that is as real an uplink as this machine has.
func (sc *scenario) lay(id string) error {
	if !sc.tunnel {
		return nil
	}
	sc.netns, sc.sink = fmt.Sprintf("weftbench-h%s", id), fmt.Sprintf("weftbench-s%s", id)
	sc.uplink, sc.local, sc.remote = "u1", "172.31.255.1", "172.31.255.2"
	sc.uplinkMAC, sc.remoteMAC = "02:00:00:00:ff:01", "02:00:00:00:ff:02"
	ns := func(args ...string) []string { return append([]string{"ip", "-n", sc.netns}, args...) }
	err := all(nil, [][]string{
		{"ip", "netns", "add", sc.netns},
		{"ip", "netns", "add", sc.sink},
		ns("link", "add", sc.uplink, "address", sc.uplinkMAC, "mtu", "2000", "type", "veth", "peer", "name", "u2", "netns", sc.sink, "address", sc.remoteMAC, "mtu", "2000"),
		ns("link", "set", "lo", "up"),
		ns("link", "set", sc.uplink, "up"),
		ns("addr", "add", sc.local+"/24", "dev", sc.uplink),
		ns("neigh", "replace", sc.remote, "lladdr", sc.remoteMAC, "dev", sc.uplink, "nud", "permanent"),
		{"ip", "-n", sc.sink, "link", "set", "u2", "up"},
	})
	if err != nil {
		return err
	}
	return sc.attachSink()
}

// attachSink puts an XDP program on the far end that counts each frame and
// drops it, so that the far end costs as little as it can.
func (sc *scenario) attachSink() error {
	var err error
	sc.counter, err = ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: 8, MaxEntries: 1})
	if err != nil {
		return fmt.Errorf("sink: counter: %w", err)
	}
	const xdpDrop = 1
	sc.program, err = ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.XDP, License: "Apache-2.0", Instructions: asm.Instructions{
		asm.StoreImm(asm.RFP, -4, 0, asm.Word),
		asm.LoadMapPtr(asm.R1, sc.counter.FD()),
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
	handle, err := netns.GetFromName(sc.sink)
	if err != nil {
		return err
	}
	defer handle.Close()
	nl, err := netlink.NewHandleAt(handle)
	if err != nil {
		return err
	}
	defer nl.Close()
	dev, err := nl.LinkByName("u2")
	if err != nil {
		return err
	}
	// XDP of the sending side needs the receiving side to have NAPI, which a
	// program on it gives.
	return inNetns(handle, func() error {
		sc.attached, err = link.AttachXDP(link.XDPOptions{Program: sc.program, Interface: dev.Attrs().Index, Flags: link.XDPDriverMode})
		return err
	})
}

// rateAtPeer is the frames a second that reach the far end.
func (sc *scenario) rateAtPeer(d time.Duration) (float64, error) {
	var before, after uint64
	if err := sc.counter.Lookup(uint32(0), &before); err != nil {
		return 0, err
	}
	start := time.Now()
	time.Sleep(d)
	if err := sc.counter.Lookup(uint32(0), &after); err != nil {
		return 0, err
	}
	if after == before {
		return 0, errors.New("nothing reached the far end of the tunnel")
	}
	return float64(after-before) / time.Since(start).Seconds(), nil
}

// clear removes all that lay made, and what a run that died left of it.
func (sc *scenario) clear() {
	if sc.attached != nil {
		sc.attached.Close()
		sc.program.Close()
		sc.counter.Close()
		sc.attached = nil
	}
	for _, ns := range []string{sc.netns, sc.sink} {
		if ns != "" {
			run(nil, "ip", "netns", "del", ns)
		}
	}
	sc.netns, sc.sink = "", ""
}

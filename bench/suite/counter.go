// SPDX-License-Identifier: Apache-2.0

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

	"weft/e2e/lab"
)

// counter is an XDP program that counts and drops the frames that a device receives. No other receiver
// takes less CPU time.
type counter struct {
	frames   *ebpf.Map
	attached link.Link
}

func (r *run) countAt(ns, dev string) *counter {
	frames, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: 8, MaxEntries: 1})
	if err != nil {
		lab.Check(fmt.Errorf("counter: %w", err))
	}
	c := &counter{frames: frames}
	r.atEnd(c.close)
	const xdpDrop = 1
	program, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.XDP, License: "Apache-2.0", Instructions: asm.Instructions{
		asm.StoreImm(asm.RFP, -4, 0, asm.Word),
		asm.LoadMapPtr(asm.R1, frames.FD()),
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
		lab.Check(fmt.Errorf("counter: %w", err))
	}
	defer program.Close() // the link keeps the program loaded
	handle := lab.Must(netns.GetFromName(ns))
	defer handle.Close()
	nl := lab.Must(netlink.NewHandleAt(handle))
	defer nl.Close()
	device := lab.Must(nl.LinkByName(dev))
	// A veth accepts frames from XDP only if its peer has NAPI enabled. An XDP program on the peer
	// enables NAPI.
	lab.Check(inNetns(handle, func() error {
		c.attached, err = link.AttachXDP(link.XDPOptions{Program: program, Interface: device.Attrs().Index, Flags: link.XDPDriverMode})
		return err
	}))
	return c
}

func (c *counter) total() (n uint64) {
	lab.Check(c.frames.Lookup(uint32(0), &n))
	return n
}

func (c *counter) rate(d time.Duration) float64 {
	before := c.total()
	start := time.Now()
	time.Sleep(d)
	after := c.total()
	if after == before {
		lab.Check(errors.New("nothing reached the far end"))
	}
	return float64(after-before) / time.Since(start).Seconds()
}

func (c *counter) detach() { c.attached.Close() }

func (c *counter) close() {
	if c.attached != nil {
		c.attached.Close()
	}
	c.frames.Close()
}

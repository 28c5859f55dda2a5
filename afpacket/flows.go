// SPDX-License-Identifier: Apache-2.0

package afpacket

import (
	"fmt"
	"slices"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"golang.org/x/sys/unix"

	"weft/offload"
	"weft/port"
)

// This file attaches the BPF programs with which the kernel forwards known flows (package offload).

// attachFilter attaches an eBPF program as the socket filter of all packet sockets of the uplink.
func (u *Uplink) attachFilter(program int) error {
	for _, fd := range u.sockets[:u.spec.sockets()] {
		if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ATTACH_BPF, program); err != nil {
			return fmt.Errorf("filter: %w", err)
		}
	}
	return nil
}

// offloadTunnels makes u.flows, the table of those flows from tunnels that the kernel forwards. It attaches
// the programs of the table. After an error, u.flows is nil and nothing is attached.
func (u *Uplink) offloadTunnels() error {
	table, err := offload.NewUplink()
	if err != nil {
		return err
	}
	u.flows = table
	if err := u.offloadEndpoints(takeNothing); err != nil {
		_ = u.setFilters(takeNothing) // error ignored: Setup has set this filter before
		u.closeIngress()
		table.Close()
		u.flows = nil
		return err
	}
	u.spec.Offload = offload.Version
	return nil
}

// offloadEndpoints loads and attaches the BPF programs of u.flows, the table of flows that the kernel
// forwards. endpoints is a filter of takeEndpoints. The sockets get the frames that this filter accepts and
// that belong to no flow of the table.
func (u *Uplink) offloadEndpoints(endpoints []unix.SockFilter) error {
	toSocket := slices.Concat(
		asm.Instructions{asm.LoadMem(asm.R0, asm.R6, skbLen, asm.Word), asm.JLT.Imm(asm.R0, ethernetLen, "next")},
		translate(endpoints, whole, 0),
		asm.Instructions{asm.Mov.Imm(asm.R0, 0).WithSymbol("next"), asm.Return()})
	toStack := append(asm.Instructions{asm.Mov.Reg(asm.R1, asm.R6)}, ingressProgram(endpoints)...)
	filter, ingress, err := u.flows.Load(toSocket, toStack)
	if err != nil {
		return err
	}
	defer filter.Close()
	defer ingress.Close()
	if err := u.replaceIngress(ingress); err != nil {
		return err
	}
	return u.attachFilter(filter.FD())
}

// replaceIngress attaches an ingress program, in place of the attached one if there is one. The
// exchange is atomic.
func (u *Uplink) replaceIngress(program *ebpf.Program) error {
	if u.ingress != nil {
		return u.ingress.Update(program)
	}
	return u.attachIngress(program)
}

// offloadFlows makes u.flows, the table of those flows of the device that the kernel forwards. It attaches
// the programs of the table. After an error, u.flows is nil and nothing is attached.
func (u *Uplink) offloadFlows() error {
	table, err := offload.New()
	if err != nil {
		return err
	}
	if err = u.attachIngress(table.Ingress()); err != nil {
		table.Close()
		return err
	}
	if err := u.attachFilter(table.Filter()); err != nil {
		u.closeIngress()
		table.Close()
		return err
	}
	u.flows, u.spec.Offload = table, offload.Version
	return nil
}

// Flows returns the table of flows that the kernel forwards. The uplink owns it. It is nil if the kernel can
// forward none. If Config.Offload is set, reason then says why.
func (u *Uplink) Flows() (table *offload.Table, reason string) { return u.flows, u.noFlows }

// countedQueue is the first receive queue of a port whose known flows the kernel may forward. It implements
// port.Offloaded, so the worker reads the counters of these flows from it.
type countedQueue struct {
	port.Rx
	*offload.Counts
}

// withCounts returns queue rx together with the counters whose descriptors are fds. If it fails, it
// closes rx.
func withCounts(rx port.Rx, fds []int) (port.Rx, error) {
	counts, err := offload.OpenCounts(fds)
	if err != nil {
		rx.Close()
		return nil, err
	}
	return countedQueue{rx, counts}, nil
}

// Close closes the queue and unmaps the counts.
func (q countedQueue) Close() {
	q.Rx.Close()
	q.Counts.Close()
}

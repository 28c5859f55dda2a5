// SPDX-License-Identifier: Apache-2.0

package afpacket

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"weft/offload"
	"weft/packet"
)

// This file has the ingress program, a BPF program on the device's ingress hook (tcx, Linux 6.6). It drops
// the datagrams that the packet sockets take, except for fragments. The packet sockets get their copies
// before the program runs (__netif_receive_skb_core). So the program only saves the kernel's stack the
// routing, netfilter and UDP socket look-up of each datagram. The control process and the engine process both
// hold a descriptor of the program's link. The kernel detaches the program when the last of these descriptors
// closes.

// results of the ingress program (include/uapi/linux/bpf.h, enum tcx_action_base)
const (
	tcxNext = -1 // goes on with the device's next program, then with the stack
	tcxDrop = 2
)

// offsets of fields in the context of a program (include/uapi/linux/bpf.h, struct __sk_buff)
const (
	skbLen         = 0
	skbVLANPresent = 20
	skbVLANTag     = 24
)

// needsTCX is the error text on a kernel that cannot attach ingress programs.
const needsTCX = "needs Linux 6.6 or later"

// shortest is the least length in bytes of a frame that the ingress program drops.
const shortest = ethernetLen + packet.IPv6Len + packet.UDPLen

// ingressProgram returns the ingress program that belongs to a socket's filter, a result of
// takeEndpoints. The program drops the frames that the filter accepts, with two exceptions:
//
//   - IPv4 fragments: without the first one, the stack would keep the others until they time
//     out.
//   - Frames that are too short for the headers over IPv6. Over IPv4, no tunnelled frame is that
//     short except in GRE. A load behind the end of a frame would end the program with the
//     result 0, which skips the device's next program and the filters of tc.
//
// Program and filter read the frame with the same instructions. R6 is the context, R0 the value of the
// last load.
func ingressProgram(filter []unix.SockFilter) (p asm.Instructions) {
	label := func(i int) string { return fmt.Sprint("instruction", i) }
	p = append(p, asm.Mov.Reg(asm.R6, asm.R1),
		asm.LoadMem(asm.R0, asm.R6, skbLen, asm.Word), asm.JLT.Imm(asm.R0, shortest, "next"),
		asm.LoadAbs(12, asm.Half), asm.JNE.Imm(asm.R0, unix.ETH_P_IP, label(0)),
		asm.LoadAbs(20, asm.Half), asm.And.Imm(asm.R0, 0x3fff), asm.JEq.Imm(asm.R0, 0, label(0)), // offset and more fragments
		asm.Mov.Imm(asm.R0, tcxNext).WithSymbol("next"), asm.Return())
	return append(p, translate(filter, tcxDrop, tcxNext)...)
}

// translate returns the eBPF instructions that do the same as a classic filter. They return accepted
// for a frame that the filter accepts, and refused for any other. R6 is the context.
func translate(filter []unix.SockFilter, accepted, refused int32) (p asm.Instructions) {
	label := func(i int) string { return fmt.Sprint("instruction", i) }
	for i, s := range filter {
		var one asm.Instruction
		switch s.Code {
		case loadHalf:
			one = asm.LoadAbs(int32(s.K), asm.Half)
			if end := int32(s.K) + 2; end > shortest { // an endpoint of GRE behind destination options
				p = append(p, asm.LoadMem(asm.R0, asm.R6, skbLen, asm.Word).WithSymbol(label(i)), asm.JLT.Imm(asm.R0, end, "next"), one)
				continue
			}
		case loadByte:
			one = asm.LoadAbs(int32(s.K), asm.Byte)
		case loadWord:
			one = loadWordOf(s.K)
		case and:
			one = asm.And.Imm(asm.R0, int32(s.K))
		case equal: // takeEndpoints never uses Jt and Jf in the same instruction
			one = asm.JNE.Imm32(asm.R0, int32(s.K), label(i+1+int(s.Jf)))
			if s.Jt > 0 {
				one = asm.JEq.Imm32(asm.R0, int32(s.K), label(i+1+int(s.Jt)))
			}
		case ret:
			result := refused
			if s.K > 0 {
				result = accepted
			}
			p = append(p, asm.Mov.Imm(asm.R0, result).WithSymbol(label(i)), asm.Return())
			continue
		}
		p = append(p, one.WithSymbol(label(i)))
	}
	return p
}

// loadWordOf returns the eBPF instruction for a filter's load of a word at offset k, which may be one
// of the offsets of VLAN tags.
func loadWordOf(k uint32) asm.Instruction {
	switch k {
	case adVLANPresent:
		return asm.LoadMem(asm.R0, asm.R6, skbVLANPresent, asm.Word)
	case adVLANTag:
		return asm.LoadMem(asm.R0, asm.R6, skbVLANTag, asm.Word)
	}
	return asm.LoadAbs(int32(k), asm.Word)
}

// spareStack makes the ingress program drop the frames that the filter accepts, so that the kernel's stack
// does not process them. If this fails, the stack sees these frames too, and u.noIngress is the reason.
func (u *Uplink) spareStack(filter []unix.SockFilter) {
	u.noIngress = ""
	if err := u.setIngress(filter); err != nil {
		u.noIngress = err.Error()
		u.closeIngress() // the former program could drop datagrams of endpoints that were removed
	}
}

// setIngress loads and attaches the ingress program for a filter. It does nothing if there are no
// endpoints and no program.
func (u *Uplink) setIngress(filter []unix.SockFilter) error {
	if u.ingress == nil && len(u.endpoints) == 0 {
		return nil
	}
	program, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Name: "weft_ingress", Type: ebpf.SchedCLS, License: "Apache-2.0", Instructions: ingressProgram(filter)})
	if errors.Is(err, unix.EPERM) {
		return errors.New("missing privilege: loading the ingress program needs CAP_BPF")
	}
	if err != nil {
		return fmt.Errorf("program: %w", err)
	}
	defer program.Close()
	return u.replaceIngress(program)
}

// attachIngress attaches an ingress program to the device, which has none yet, and stores the program's link
// in u.ingress.
func (u *Uplink) attachIngress(program *ebpf.Program) (err error) {
	u.ingress, err = link.AttachTCX(link.TCXOptions{Interface: u.ifindex, Program: program, Attach: ebpf.AttachTCXIngress})
	if errors.Is(err, ebpf.ErrNotSupported) {
		return errors.New(needsTCX)
	}
	return err
}

// closeIngress closes this process's descriptor of the ingress program's link. The kernel detaches the
// program if no other process has one.
func (u *Uplink) closeIngress() {
	if u.ingress != nil {
		_ = u.ingress.Close()
		u.ingress = nil
	}
}

// IngressFDs returns the descriptors that Restore needs after those of Snapshot: the link of the ingress
// program, then the descriptors of the table of flows that the kernel forwards. Without an ingress program it
// returns nil. The uplink owns the descriptors.
func (u *Uplink) IngressFDs() []int {
	l, ok := u.ingress.(interface{ FD() int })
	switch {
	case !ok:
		return nil
	case u.flows != nil:
		return append([]int{l.FD()}, u.flows.FDs()[offload.CountFDs:]...)
	}
	return []int{l.FD()}
}

// InStack returns the reason why the kernel's stack also sees the datagrams of the tunnels. The result is ""
// if the stack does not see them.
func (u *Uplink) InStack() string { return u.noIngress }

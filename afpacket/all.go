// SPDX-License-Identifier: Apache-2.0

package afpacket

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"golang.org/x/sys/unix"

	"weft/packet"
)

// A port of a device (Config.All) differs from an uplink as follows. Its sockets take every frame that
// arrives at the device. The ingress program, which runs after the sockets have got their copies, drops every
// frame. So the kernel's stack neither answers nor forwards the frames that the switch forwards. The kernel
// takes the VLAN tag off a received frame and writes it into the slot's header in the ring. A port of a
// device therefore needs rings.

// takeEverything is a filter that accepts every frame.
var takeEverything = []unix.SockFilter{statement(ret, whole)}

// takeAll makes the sockets take every frame of the device, including frames to other MAC addresses. If
// offloads is true and the kernel can do it, BPF programs in the kernel forward the frames of known flows.
func (u *Uplink) takeAll(offloads bool) error {
	if u.noRing != "" {
		return fmt.Errorf("the port needs mapped rings, which have the VLAN tags: %s", u.noRing)
	}
	for _, fd := range u.sockets {
		// The device stays in promiscuous mode until the socket is closed.
		err := unix.SetsockoptPacketMreq(fd, unix.SOL_PACKET, unix.PACKET_ADD_MEMBERSHIP,
			&unix.PacketMreq{Ifindex: int32(u.ifindex), Type: unix.PACKET_MR_PROMISC})
		if err != nil {
			return fmt.Errorf("promiscuous mode: %w", err)
		}
	}
	if offloads {
		err := u.offloadFlows()
		if err == nil {
			return nil
		}
		u.noFlows = err.Error()
	}
	if err := u.dropAll(); err != nil {
		u.noIngress = err.Error()
	}
	for _, fd := range u.sockets {
		if err := setFilter(fd, takeEverything); err != nil {
			return fmt.Errorf("filter: %w", err)
		}
	}
	return nil
}

// dropAll attaches an ingress program that drops every frame.
func (u *Uplink) dropAll() error {
	program, err := ebpf.NewProgram(&ebpf.ProgramSpec{Name: "weft_ingress", Type: ebpf.SchedCLS, License: "Apache-2.0",
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, tcxDrop), asm.Return()}})
	if errors.Is(err, unix.EPERM) {
		return errors.New("missing privilege: loading the ingress program needs CAP_BPF")
	}
	if err != nil {
		return fmt.Errorf("program: %w", err)
	}
	defer program.Close()
	return u.attachIngress(program)
}

// tag returns the VLAN tag that the kernel has taken off the slot's frame: the EtherType in the upper
// half, the tag control information in the lower half. 0 means that the frame had no tag.
func (s *slot) tag() uint32 {
	status := s.Status
	if status&unix.TP_STATUS_VLAN_VALID == 0 {
		return 0
	}
	tpid := uint32(packet.EtherTypeVLAN)
	if status&unix.TP_STATUS_VLAN_TPID_VALID != 0 {
		tpid = uint32(s.Vlan_tpid)
	}
	return tpid<<16 | uint32(s.Vlan_tci)
}

// noteTagged appends a frame to the batch, as note does, and puts the VLAN tag q.tag back into it.
func (q *rxQueue) noteTagged(b *packet.Batch, vnet *[packet.VnetLen]byte, addr uintptr, n int) {
	const addresses = 12
	f, header := b.Next()
	if n < addresses {
		f.Drop = packet.DropBadOffload // the kernel takes tags off Ethernet frames only
		b.Commit(f, 0)
		return
	}
	f.SetOrigin(addr - packet.VLANLen) // the address that the frame would have with its tag
	copy(header[:addresses], packet.Foreign(addr, addresses))
	binary.BigEndian.PutUint32(header[addresses:], q.tag)
	k := copy(header[addresses+packet.VLANLen:rxHeader], packet.Foreign(addr+addresses, uint32(n-addresses)))
	f.DecodeVnet(vnet, packet.TakesAll, false)
	if f.Offload.Flags&packet.OffloadPartial != 0 {
		f.Offload.CsumStart += packet.VLANLen // the kernel counts without the tag
	}
	if n > k+addresses {
		b.AddSpan(f, addr+uintptr(k+addresses), uint32(n-k-addresses))
	}
	if n >= bufferLen {
		f.Drop = packet.DropOversizeFrame // truncated by the kernel
	}
	b.Commit(f, addresses+packet.VLANLen+k)
}

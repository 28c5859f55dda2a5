// SPDX-License-Identifier: Apache-2.0

package xsk

import (
	"encoding/binary"
	"fmt"
	"net/netip"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"golang.org/x/sys/unix"

	"weft/packet"
)

// This file has the XDP program. It redirects datagrams to the switch's own tunnel endpoints into the socket
// of the queue on which they arrived. Such a datagram is UDP or GRE directly over IPv4 or IPv6. It is neither
// a fragment nor VLAN-tagged, and its destination is in the BPF map of endpoints. Before GRE over IPv6 there
// may be 8 bytes of destination options, as Linux sends them. All other frames pass to the kernel, also those
// on queues without a socket. Fragments pass because only the kernel reassembles them. Tagged frames pass
// because some drivers remove the tag.
//
// The program is assembled in this file, so neither the build nor the switch needs a BPF compiler.

// endpointKey is the key of the BPF map of endpoints. It has the IPv6 address (an IPv4 address is
// mapped into IPv6), the UDP port or GRE's protocol type in network order, 0 or the protocol number of
// GRE, and a zero byte.
type endpointKey [20]byte

// makeEndpointKeys returns the keys of an endpoint. Port 0 stands for GRE, which has one key for each
// protocol type that tunnels use.
func makeEndpointKeys(e netip.AddrPort) []endpointKey {
	var k endpointKey
	a := e.Addr().As16()
	copy(k[:], a[:])
	if e.Port() != 0 {
		binary.BigEndian.PutUint16(k[16:], e.Port())
		return []endpointKey{k}
	}
	var keys []endpointKey
	for _, protocol := range packet.GREProtocols {
		binary.BigEndian.PutUint16(k[16:], protocol)
		k[18] = packet.ProtoGRE
		keys = append(keys, k)
	}
	return keys
}

// String returns the endpoint as in 192.0.2.1:4789, or as in "gre to 192.0.2.1".
func (k endpointKey) String() string {
	address := netip.AddrFrom16([16]byte(k[:16])).Unmap()
	if k[18] != 0 {
		return "gre to " + address.String()
	}
	return netip.AddrPortFrom(address, binary.BigEndian.Uint16(k[16:])).String()
}

// xdpPass is the XDP action that passes a frame to the kernel
// (include/uapi/linux/bpf.h).
const xdpPass = 2

// keyAt is the offset of the endpoint key in the program's stack. The key takes 20 bytes, up to offset
// -4, so that stores of eight bytes are aligned.
const (
	keyAt       = -24
	keyPort     = keyAt + 16
	keyProtocol = keyAt + 18
)

// network16 returns v as a two-byte load of the program reads it from a packet in network byte order.
func network16(v uint16) int32 {
	return int32(binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, v)))
}

// instructions returns the XDP program. endpoints and sockets are the descriptors of its maps. R6 is
// the context, R2 the start of the packet, R3 its end, R4 the transport header and R5 scratch.
func instructions(endpoints, sockets int) asm.Instructions {
	var p asm.Instructions
	p = append(p,
		asm.Mov.Reg(asm.R6, asm.R1),
		asm.LoadMem(asm.R2, asm.R6, 0, asm.Word), // load xdp_md.data
		asm.LoadMem(asm.R3, asm.R6, 4, asm.Word), // load xdp_md.data_end
		asm.Mov.Imm(asm.R5, 0),
		asm.StoreMem(asm.RFP, keyAt, asm.R5, asm.DWord),
		asm.StoreMem(asm.RFP, keyPort, asm.R5, asm.Word),
		asm.Mov.Reg(asm.R4, asm.R2),
		asm.Add.Imm(asm.R4, 14),
		asm.JGT.Reg(asm.R4, asm.R3, "pass"),
		asm.LoadMem(asm.R5, asm.R2, 12, asm.Half), // load the EtherType
		asm.JEq.Imm(asm.R5, network16(0x0800), "ipv4"),
		asm.JEq.Imm(asm.R5, network16(0x86dd), "ipv6"),
		asm.Ja.Label("pass"),
	)
	p = append(p, ipv4()...)
	p = append(p, ipv6()...)
	p = append(p,
		asm.Mov.Reg(asm.R5, asm.R4).WithSymbol("udp"),
		asm.Add.Imm(asm.R5, 8),
		asm.JGT.Reg(asm.R5, asm.R3, "pass"),
		asm.LoadMem(asm.R5, asm.R4, 2, asm.Half), // load the destination port or the protocol type of GRE
		asm.StoreMem(asm.RFP, keyPort, asm.R5, asm.Half),
		asm.LoadMapPtr(asm.R1, endpoints),
		asm.Mov.Reg(asm.R2, asm.RFP),
		asm.Add.Imm(asm.R2, keyAt),
		asm.FnMapLookupElem.Call(),
		asm.JEq.Imm(asm.R0, 0, "pass"),
		asm.LoadMem(asm.R2, asm.R6, 16, asm.Word), // load xdp_md.rx_queue_index
		asm.LoadMapPtr(asm.R1, sockets),
		asm.Mov.Imm(asm.R3, xdpPass), // result of the redirect helper if the queue has no socket
		asm.FnRedirectMap.Call(),
		asm.Return(),
		asm.Mov.Imm(asm.R0, xdpPass).WithSymbol("pass"),
		asm.Return(),
	)
	return p
}

// ipv4 returns the instructions that parse the IPv4 header (RFC 791 section 3.1) behind the Ethernet
// header.
func ipv4() asm.Instructions {
	return asm.Instructions{
		asm.Mov.Reg(asm.R4, asm.R2).WithSymbol("ipv4"),
		asm.Add.Imm(asm.R4, 14+20),
		asm.JGT.Reg(asm.R4, asm.R3, "pass"),
		asm.LoadMem(asm.R5, asm.R2, 14+6, asm.Half),
		asm.And.Imm(asm.R5, network16(0x3fff)), // fragment: the flag "more fragments" or an offset
		asm.JNE.Imm(asm.R5, 0, "pass"),
		asm.LoadMem(asm.R5, asm.R2, 14+9, asm.Byte),
		asm.JEq.Imm(asm.R5, packet.ProtoUDP, "destination"),
		asm.JNE.Imm(asm.R5, packet.ProtoGRE, "pass"),
		asm.StoreMem(asm.RFP, keyProtocol, asm.R5, asm.Byte),
		asm.Mov.Imm(asm.R5, 0).WithSymbol("destination"),
		asm.StoreMem(asm.RFP, keyAt+8, asm.R5, asm.Half),
		asm.Mov.Imm(asm.R5, 0xffff), // prefix ffff of mapped IPv4 addresses (RFC 4291 section 2.5.5.2)
		asm.StoreMem(asm.RFP, keyAt+10, asm.R5, asm.Half),
		asm.LoadMem(asm.R5, asm.R2, 14+16, asm.Word), // load the destination address
		asm.StoreMem(asm.RFP, keyAt+12, asm.R5, asm.Word),
		asm.LoadMem(asm.R5, asm.R2, 14, asm.Byte), // load version and header length (in 32-bit words)
		asm.Mov.Reg(asm.R0, asm.R5),
		asm.RSh.Imm(asm.R0, 4),
		asm.JNE.Imm(asm.R0, 4, "pass"),
		asm.And.Imm(asm.R5, 15),
		asm.JLT.Imm(asm.R5, 5, "pass"),
		asm.LSh.Imm(asm.R5, 2),
		asm.Mov.Reg(asm.R4, asm.R2),
		asm.Add.Imm(asm.R4, 14),
		asm.Add.Reg(asm.R4, asm.R5),
		asm.Ja.Label("udp"),
	}
}

// ipv6 returns the instructions that parse the IPv6 header (RFC 8200 section 3) behind the Ethernet
// header. The only extension header that they accept is 8 bytes of destination options before GRE.
// Frames with others pass to the kernel.
func ipv6() asm.Instructions {
	p := asm.Instructions{
		asm.Mov.Reg(asm.R4, asm.R2).WithSymbol("ipv6"),
		asm.Add.Imm(asm.R4, 14+40),
		asm.JGT.Reg(asm.R4, asm.R3, "pass"),
		asm.LoadMem(asm.R5, asm.R2, 14, asm.Byte),
		asm.RSh.Imm(asm.R5, 4),
		asm.JNE.Imm(asm.R5, 6, "pass"),
		asm.LoadMem(asm.R5, asm.R2, 14+6, asm.Byte),
		asm.JEq.Imm(asm.R5, packet.ProtoUDP, "destination of IPv6"),
		asm.JEq.Imm(asm.R5, packet.ProtoGRE, "gre over IPv6"),
		asm.JNE.Imm(asm.R5, packet.ProtoDestOpts, "pass"),
		asm.Mov.Reg(asm.R5, asm.R4),
		asm.Add.Imm(asm.R5, 8),
		asm.JGT.Reg(asm.R5, asm.R3, "pass"),
		asm.LoadMem(asm.R5, asm.R4, 0, asm.Half), // load next header and length (RFC 8200 section 4.6)
		asm.JNE.Imm(asm.R5, network16(packet.ProtoGRE<<8), "pass"),
		asm.Add.Imm(asm.R4, 8),
		asm.Mov.Imm(asm.R5, packet.ProtoGRE).WithSymbol("gre over IPv6"),
		asm.StoreMem(asm.RFP, keyProtocol, asm.R5, asm.Byte),
	}
	for i := int16(0); i < 16; i += 4 {
		load := asm.LoadMem(asm.R5, asm.R2, 14+24+i, asm.Word) // load a word of the destination address
		if i == 0 {
			load = load.WithSymbol("destination of IPv6")
		}
		p = append(p, load,
			asm.StoreMem(asm.RFP, keyAt+i, asm.R5, asm.Word),
		)
	}
	return append(p, asm.Ja.Label("udp")) // R4 points behind the header
}

// program is the loaded XDP program with its maps. While the program is attached, its link keeps it loaded.
type program struct {
	prog      *ebpf.Program
	endpoints *ebpf.Map // map from endpointKey to an unused value
	sockets   *ebpf.Map // map of type XSKMAP, from queue number to socket
}

// loadProgram loads the program and its maps for a device with this number of queues. pieces allows
// frames that take several UMEM frames (pieces). The program sees only the first piece, which has all
// headers.
func loadProgram(queues int, pieces bool) (*program, error) {
	p := &program{}
	var err error
	p.endpoints, err = ebpf.NewMap(&ebpf.MapSpec{
		Name: "weft_endpoints", Type: ebpf.Hash, KeySize: uint32(len(endpointKey{})), ValueSize: 4, MaxEntries: maxEndpoints,
	})
	if err != nil {
		return nil, fmt.Errorf("endpoints map: %w", err)
	}
	p.sockets, err = ebpf.NewMap(&ebpf.MapSpec{
		Name: "weft_sockets", Type: ebpf.XSKMap, KeySize: 4, ValueSize: 4, MaxEntries: uint32(queues),
	})
	if err != nil {
		p.close()
		return nil, fmt.Errorf("sockets map: %w", err)
	}
	flags := uint32(0)
	if pieces {
		flags = unix.BPF_F_XDP_HAS_FRAGS
	}
	p.prog, err = ebpf.NewProgram(&ebpf.ProgramSpec{
		Flags: flags,
		Name:  "weft_uplink", Type: ebpf.XDP, License: "Apache-2.0",
		Instructions: instructions(p.endpoints.FD(), p.sockets.FD()),
	})
	if err != nil {
		p.close()
		return nil, fmt.Errorf("XDP program: %w", err)
	}
	return p, nil
}

// close closes the open descriptors. An attached program keeps its maps.
func (p *program) close() {
	if p.prog != nil {
		p.prog.Close()
	}
	if p.endpoints != nil {
		p.endpoints.Close()
	}
	if p.sockets != nil {
		p.sockets.Close()
	}
}

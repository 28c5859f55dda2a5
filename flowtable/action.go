// SPDX-License-Identifier: Apache-2.0

package flowtable

// Op is the operation of an Action.
type Op uint8

// Operations. Actions are data: the datapath executes a flat list of them in order,
// on the private header. The order of these constants is part of the layout in shared
// memory.
const (
	OpNone Op = iota
	// OpOutput sends to datapath port U32.
	OpOutput
	// OpTunnel pushes the outer headers of tunnel template U32 with VNI U64, sends
	// the frame to the template's uplink and pops the headers again. The frame also
	// counts as sent by vxlan port U16; 0: by no port.
	OpTunnel
	// OpDrop ends the list and counts the frame under packet.DropReason U32.
	OpDrop
	// OpPushVLAN inserts a tag with TPID U16 and TCI U32 (16 bits, CFI as on the
	// wire) before the EtherType. OpPopVLAN removes the outermost tag, if any.
	OpPushVLAN
	OpPopVLAN
	// OpSetVLAN sets the outermost tag's TCI to U32 (16 bits).
	OpSetVLAN
	// OpSetEthDst and OpSetEthSrc set the low 48 bits of U64.
	OpSetEthDst
	OpSetEthSrc
	// OpSetIPv4Src and OpSetIPv4Dst set the address U32, most significant byte first,
	// and update the checksums that cover it.
	OpSetIPv4Src
	OpSetIPv4Dst
	// OpSetIPv6Src and OpSetIPv6Dst take the upper half of the address from U64 and
	// the lower half from the U64 of the OpData that follows.
	OpSetIPv6Src
	OpSetIPv6Dst
	OpData
	// OpSetTOS sets all eight bits of the TOS or traffic class to U32. OpSetTTL sets
	// the TTL or hop limit to U32. OpDecTTL decrements it and drops the frame at 1
	// and 0.
	OpSetTOS
	OpSetTTL
	OpDecTTL
	// OpSetTpSrc and OpSetTpDst set the transport port (TCP, UDP, SCTP) to U32 and
	// update the checksum.
	OpSetTpSrc
	OpSetTpDst
	// OpCT tracks the frame's connection in zone U16. U32 is a set of CT* bits; U64
	// is mark 32 | mask of the mark 32. OpData records follow as in CTRequest.
	OpCT
	// OpCTClear makes the frame untracked.
	OpCTClear
	// OpRecirc looks the frame up again, with recirc_id U32 and the ct_* fields that
	// OpCT set. Later actions of the list see the frame as it was before.
	OpRecirc
	// OpMeter drops the frame under packet.DropReason U64 if it exceeds the rate of
	// meter U32, which is below MaxMeters.
	OpMeter
	// OpSetARP* set a field of ARP: U32, or for hardware addresses the low 48 bits of
	// U64.
	OpSetARPOp
	OpSetARPSpa
	OpSetARPTpa
	OpSetARPSha
	OpSetARPTha
	// OpSetICMPType and OpSetICMPCode set U32 in ICMP or ICMPv6.
	OpSetICMPType
	OpSetICMPCode
	// OpSetNDTarget sets the target of neighbour discovery, in the form of
	// OpSetIPv6Src. OpSetNDSll and OpSetNDTll set the low 48 bits of U64 in an option
	// that the frame has.
	OpSetNDTarget
	OpSetNDSll
	OpSetNDTll
	// OpSetIPv6Label sets the low 20 bits of U32.
	OpSetIPv6Label
	// OpController copies the frame's first U32 bytes to the captures of controller
	// messages.
	OpController
	// OpAnswer answers an ARP request or a neighbour solicitation on the port that
	// received it. The answer has the MAC address in the low 48 bits of U64.
	OpAnswer
)

// Action is one step: 16 bytes without pointers.
type Action struct {
	Op  Op
	_   uint8
	U16 uint16
	U32 uint32
	U64 uint64
}

// MaxMeters is the number of meters that OpMeter can name.
const MaxMeters = 4096

// MaxActions is the greatest length of a megaflow's list. A flood to all of
// port.MaxPorts ports fits.
const MaxActions = 2048

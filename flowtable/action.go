// SPDX-License-Identifier: Apache-2.0

package flowtable

// Op is the operation of an Action.
type Op uint8

// Operations of actions. The datapath executes a flat list of actions in order, on
// the frame's private header (see package packet). U16, U32 and U64 below are the
// operands in the fields of Action. The order of these constants is part of the
// layout in shared memory.
const (
	OpNone Op = iota
	// OpOutput sends to datapath port U32.
	OpOutput
	// OpTunnel pushes the outer headers of tunnel template U32 with VNI U64, sends
	// the frame to the uplink of the template and pops the headers again. U16 is the
	// vxlan port whose counters also count the frame; 0: none.
	OpTunnel
	// OpDrop ends the list of actions and counts the frame under packet.DropReason
	// U32.
	OpDrop
	// OpPushVLAN inserts a VLAN tag with TPID U16 and TCI U32 (16 bits, CFI as on the
	// wire) before the EtherType. OpPopVLAN removes the outermost tag, if the frame
	// has one.
	OpPushVLAN
	OpPopVLAN
	// OpSetVLAN sets the outermost tag's TCI to U32 (16 bits).
	OpSetVLAN
	// OpSetEthDst and OpSetEthSrc set the MAC address to the low 48 bits of U64.
	OpSetEthDst
	OpSetEthSrc
	// OpSetIPv4Src and OpSetIPv4Dst set the IPv4 address to U32, most significant
	// byte first, and update the checksums that cover the address.
	OpSetIPv4Src
	OpSetIPv4Dst
	// OpSetIPv6Src and OpSetIPv6Dst set the IPv6 address. U64 is its upper half. The
	// U64 of the OpData action behind this action is its lower half.
	OpSetIPv6Src
	OpSetIPv6Dst
	OpData
	// OpSetTOS sets all eight bits of the TOS or traffic class to U32. OpSetTTL sets
	// the TTL or hop limit to U32. OpDecTTL decrements the TTL or hop limit; it drops
	// the frame if the value is 1 or 0.
	OpSetTOS
	OpSetTTL
	OpDecTTL
	// OpSetTpSrc and OpSetTpDst set the transport port (TCP, UDP, SCTP) to U32 and
	// update the checksum.
	OpSetTpSrc
	OpSetTpDst
	// OpCT tracks the frame's connection in zone U16. U32 is a set of CT* bits. The
	// upper half of U64 is ct_mark, the lower half the mask of ct_mark. OpData
	// actions follow as in CTRequest.
	OpCT
	// OpCTClear makes the frame untracked.
	OpCTClear
	// OpRecirc looks up a copy of the frame again, with recirc_id U32 and the ct_*
	// fields that OpCT has set. The next action of the list continues with the frame
	// in its state before OpRecirc.
	OpRecirc
	// OpMeter drops the frame under packet.DropReason U64 if it exceeds the rate of
	// meter U32, which is below MaxMeters.
	OpMeter
	// OpSetARP* set a field of ARP to U32. The actions for hardware addresses set it
	// to the low 48 bits of U64.
	OpSetARPOp
	OpSetARPSpa
	OpSetARPTpa
	OpSetARPSha
	OpSetARPTha
	// OpSetICMPType and OpSetICMPCode set the type and the code of ICMP or ICMPv6 to
	// U32.
	OpSetICMPType
	OpSetICMPCode
	// OpSetNDTarget sets the target address of neighbour discovery; the operands are
	// as in OpSetIPv6Src. OpSetNDSll and OpSetNDTll set the address in the source and
	// target link-layer address option to the low 48 bits of U64. They change nothing
	// if the frame does not have the option.
	OpSetNDTarget
	OpSetNDSll
	OpSetNDTll
	// OpSetIPv6Label sets the IPv6 flow label to the low 20 bits of U32.
	OpSetIPv6Label
	// OpController copies the frame's first U32 bytes to the captures of controller
	// messages.
	OpController
	// OpAnswer answers an ARP request or a neighbour solicitation on the port that
	// received it. The answer has the MAC address in the low 48 bits of U64.
	OpAnswer
)

// Action is one action of a megaflow: 16 bytes without pointers.
type Action struct {
	Op  Op
	_   uint8
	U16 uint16
	U32 uint32
	U64 uint64
}

// MaxMeters is the number of meters that OpMeter can name.
const MaxMeters = 4096

// MaxActions is the maximum number of actions of a megaflow. A flood to all of
// port.MaxPorts ports fits.
const MaxActions = 2048

package flowtable

// Op is the operation of an Action.
type Op uint8

// Operations. Actions are data: a flat list, executed in order by the datapath
// on the private header. The order is part of the layout in shared memory.
const (
	OpNone Op = iota
	// OpOutput sends to datapath port U32.
	OpOutput
	// OpTunnel puts the outer headers of tunnel template U32 before the frame,
	// with VNI U64, sends it to the template's uplink and takes them off again.
	// The frame counts as sent by vxlan port U16 too; 0: by none.
	OpTunnel
	// OpDrop ends the list and counts the frame under packet.DropReason U32.
	OpDrop
	// OpPushVLAN puts a tag with TPID U16 and TCI U32 (16 bits, the CFI bit as
	// on the wire) before the frame's EtherType; OpPopVLAN takes the outermost
	// tag off, if there is one.
	OpPushVLAN
	OpPopVLAN
	// OpSetVLAN sets the outermost tag's TCI to U32 (16 bits).
	OpSetVLAN
	// OpSetEthDst and OpSetEthSrc set the low 48 bits of U64.
	OpSetEthDst
	OpSetEthSrc
	// OpSetIPv4Src and OpSetIPv4Dst set U32, most significant byte first, and
	// mend the checksums that cover it.
	OpSetIPv4Src
	OpSetIPv4Dst
	// OpSetIPv6Src and OpSetIPv6Dst take the address from U64 (upper half) and
	// the U64 of the OpData that follows (lower half).
	OpSetIPv6Src
	OpSetIPv6Dst
	OpData
	// OpSetTOS sets all eight bits of the TOS or traffic class to U32, OpSetTTL
	// the TTL or hop limit, OpDecTTL takes one off and drops at 1 and 0.
	OpSetTOS
	OpSetTTL
	OpDecTTL
	// OpSetTpSrc and OpSetTpDst set the transport port (TCP, UDP, SCTP) to U32
	// and mend its checksum.
	OpSetTpSrc
	OpSetTpDst
	// OpCT takes the frame through connection tracking in zone U16 as the CT*
	// bits in U32 say; U64 is mark 32 | mask of it 32. OpData records follow as
	// CTRequest has them.
	OpCT
	// OpCTClear makes the frame untracked.
	OpCTClear
	// OpRecirc looks the frame up once more, with recirc_id U32 and the ct_*
	// fields that OpCT has set. Actions behind it go on with the frame as it was.
	OpRecirc
	// OpMeter drops the frame under packet.DropReason U64 if it exceeds meter U32,
	// below MaxMeters.
	OpMeter
	// OpSetARP* set a field of ARP: U32, the addresses of hardware the low 48 bits
	// of U64.
	OpSetARPOp
	OpSetARPSpa
	OpSetARPTpa
	OpSetARPSha
	OpSetARPTha
	// OpSetICMPType and OpSetICMPCode set U32 in ICMP or ICMPv6.
	OpSetICMPType
	OpSetICMPCode
	// OpSetNDTarget sets the target of neighbour discovery as OpSetIPv6Src does an
	// address, OpSetNDSll and OpSetNDTll the low 48 bits of U64 in an option that
	// is there.
	OpSetNDTarget
	OpSetNDSll
	OpSetNDTll
	// OpSetIPv6Label sets the low 20 bits of U32.
	OpSetIPv6Label
	// OpController shows the frame's first U32 bytes to those who follow the
	// controller.
	OpController
	// OpAnswer answers an ARP request or a neighbour solicitation, to the port it
	// came in on, with the MAC address in the low 48 bits of U64.
	OpAnswer
)

// Action is one step, 16 bytes, no pointers.
type Action struct {
	Op  Op
	_   uint8
	U16 uint16
	U32 uint32
	U64 uint64
}

// MaxMeters is the number of meters that OpMeter can name.
const MaxMeters = 4096

// MaxActions bounds the list of one megaflow. Flooding to all of port.MaxPorts
// ports fits.
const MaxActions = 2048

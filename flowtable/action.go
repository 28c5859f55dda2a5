// SPDX-License-Identifier: Apache-2.0

package flowtable

// Op is the operation of an Action.
type Op uint8

// Operations of actions. The datapath executes a list of actions in order on the frame's header buffer.
// U16, U32 and U64 below are the fields of the Action that has the operation. The order of these
// constants must not change, because the action lists in shared memory contain their values.
const (
	OpNone Op = iota
	// OpOutput sends the frame to datapath port U32.
	OpOutput
	// OpTunnel sends the frame into a tunnel. It pushes the outer headers of tunnel template U32, sends the
	// frame to the template's uplink, and pops the headers again. The low half of U64 is the VNI. U16 is
	// the number of the tunnel's port, which also counts the frame; 0: no port does. The upper half of U64
	// is the largest length of the inner frame in bytes; 0: no limit. A longer frame, or a longer segment
	// of a large frame, is truncated.
	OpTunnel
	// OpDrop ends the list and drops the frame for the reason U32, a packet.DropReason.
	OpDrop
	// OpPushVLAN inserts a VLAN tag with TPID U16 and TCI U32 (16 bits, with the CFI
	// bit as on the wire). OpPopVLAN removes the outermost tag, if any.
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
	// OpSetIPv6Src and OpSetIPv6Dst set the IPv6 address. U64 is its upper half. U64 of the
	// following OpData action is its lower half.
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
	// OpCT tracks the frame's connection in ct zone U16. U32 is a set of flags, such as CTNAT. U64 has
	// ct_mark in its upper half and the mask of ct_mark in its lower half. OpData actions follow if the
	// flag CTLabel or CTRange is set. ReadCT decodes OpCT with its OpData actions.
	OpCT
	// OpCTClear sets the frame's ct_* fields to 0, as if no ct action had tracked it.
	OpCTClear
	// OpRecirc looks up the frame again with recirc_id U32 and the ct_* fields, and executes the
	// actions of the megaflow that it finds. Then the list continues with the frame as it was
	// before OpRecirc.
	OpRecirc
	// OpMeter counts the frame against the rate of meter U32 (below MaxMeters). It changes
	// nothing for a frame within the rate. For a frame beyond the rate, there are three cases:
	//   - U16 is not 0: OpMeter raises the drop precedence in the frame's DSCP by U16.
	//   - U16 is 0, U64 is not 0: OpMeter drops the frame with packet.DropReason U64.
	//   - U16 and U64 are 0: the worker skips the next OpController of the frame's actions.
	OpMeter
	// OpSetARPOp, OpSetARPSpa and OpSetARPTpa set a field of ARP to U32. OpSetARPSha and
	// OpSetARPTha set a hardware address to the low 48 bits of U64.
	OpSetARPOp
	OpSetARPSpa
	OpSetARPTpa
	OpSetARPSha
	OpSetARPTha
	// OpSetICMPType and OpSetICMPCode set the type and the code of ICMP or ICMPv6 to
	// U32.
	OpSetICMPType
	OpSetICMPCode
	// OpSetNDTarget sets the target address of neighbour discovery. U64 is the upper half of the
	// address, and U64 of the following OpData action is its lower half. OpSetNDSll and OpSetNDTll
	// set the source and target link-layer address option to the low 48 bits of U64, if the frame
	// has the option.
	OpSetNDTarget
	OpSetNDSll
	OpSetNDTll
	// OpSetIPv6Label sets the IPv6 flow label to the low 20 bits of U32.
	OpSetIPv6Label
	// OpController copies the frame's first U32 bytes to the capture ring, from which the control process
	// reads them and sends them to the OpenFlow controller. U64 is the number of the note
	// (xlate.ControllerNote) with the other contents of the packet_in message.
	OpController
	// OpAnswer answers an ARP request or a neighbour solicitation. The answer has the MAC address
	// in the low 48 bits of U64 and leaves through the input port.
	OpAnswer
	// OpPushMPLS inserts the label stack entry U32 after the VLAN tags and sets the
	// EtherType to U16. OpPopMPLS removes the outermost label stack entry, if any, and sets
	// the EtherType to U16.
	OpPushMPLS
	OpPopMPLS
	// OpPushPBB prepends an Ethernet header with the frame's addresses and the I-TAG U32.
	// OpPopPBB removes everything before the inner Ethernet header, if the frame has one.
	OpPushPBB
	OpPopPBB
	// OpSetShim sets the outermost label stack entry or the I-TAG to U32, if the frame has one.
	OpSetShim
	// OpSetNDReserved sets the reserved word of neighbour discovery to U32.
	OpSetNDReserved
	// OpSetNDOptionsType sets the type of the first neighbour discovery option that carries a
	// link-layer address to U32, if the frame has such an option.
	OpSetNDOptionsType
	// OpTunOptions sets the raw Geneve options for the OpTunnel actions after it in the list. U16 is
	// their length in bytes: a multiple of 4, at most MaxTunOptions; 0: no options. OpData actions
	// follow with 8 bytes each in U64, the first byte in the most significant bits. The last one is
	// padded with zeros. Tunnels of other kinds ignore the options. Before the first OpTunOptions
	// of a list there are no options.
	OpTunOptions
	// OpTunMeta sets the group policy and the flags for the OpTunnel actions after it in the list to
	// U64, in the layout of the key's word WTunMeta. A tunnel ignores the fields that its header
	// does not have. Before the first OpTunMeta of a list they are 0.
	OpTunMeta
	// OpOutputTruncated sends the frame's first U64 bytes to datapath port U32. Later actions
	// of the list see the whole frame.
	OpOutputTruncated
	// OpLonger stands before two OpRecirc actions and executes one of them: the first if the frame,
	// or a segment of a large frame, has more than U32 bytes, otherwise the second.
	OpLonger
	// OpEncapMPLS prepends an Ethernet header with EtherType U16 and addresses 0, and the
	// label stack entry U32.
	OpEncapMPLS
	// OpDecapMPLS removes the outer Ethernet header, its VLAN tags and the outermost label
	// stack entry. It does nothing if the frame has no entry.
	OpDecapMPLS
	// OpQueue stands before an output to port U16. If the frame exceeds the rate of meter U32, the worker
	// skips this output, and the port counts a drop with the reason packet.DropQueue.
	OpQueue
	// OpEncapNSH prepends an Ethernet header with addresses 0, and a network service header (NSH)
	// with the fields U64 (packet.NSHFields). OpPushNSH inserts only the NSH, after the Ethernet
	// header.
	OpEncapNSH
	OpPushNSH
	// OpDecapNSH removes the outer Ethernet header, its VLAN tags and the NSH. OpPopNSH removes
	// the NSH and sets the EtherType to U16. They do nothing if the frame has no NSH.
	OpDecapNSH
	OpPopNSH
	// The operations OpSetNSHFlags to OpSetNSHC4 set one field of the NSH to U32, if the frame has
	// the field.
	OpSetNSHFlags
	OpSetNSHTTL
	OpSetNSHSPI
	OpSetNSHSI
	OpSetNSHC1
	OpSetNSHC2
	OpSetNSHC3
	OpSetNSHC4
	// OpObserve sets the observation domain (upper half of U64) and the observation point (lower half) that
	// the next OpSample reports (IPFIX).
	OpObserve
	// OpSample copies the first U16 bytes of randomly chosen frames to the capture ring, for an IPFIX or
	// sFlow exporter. A frame is chosen with the probability U32/(2^32-1). U64 is a SampleTag, encoded by
	// its method Word.
	OpSample
)

// Action is one action of a megaflow: 16 bytes without pointers.
type Action struct {
	Op  Op
	_   uint8
	U16 uint16
	U32 uint32
	U64 uint64
}

// MaxMeters is the number of token buckets that OpMeter and OpQueue can name. The first MaxBands
// are for the bands of OpenFlow's meters. The other MaxPortBuckets are for the queues and the
// policing of ports.
const (
	MaxBands       = 4096
	MaxPortBuckets = 1024
	MaxMeters      = MaxBands + MaxPortBuckets
)

// MaxActions is the maximum number of actions of a megaflow. It is enough for a flood to all of
// port.MaxPorts ports.
const MaxActions = 2048

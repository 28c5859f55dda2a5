// SPDX-License-Identifier: Apache-2.0

package openflow

import "encoding/binary"

// Types of the standard actions on the wire (OpenFlow 1.0, 5.2.4; OpenFlow 1.5, 7.2.6).
const (
	wireOutput       = 0
	wire10SetVLANVID = 1
	wire10SetVLANPCP = 2
	wire10StripVLAN  = 3
	wire10SetDLSrc   = 4
	wire10SetDLDst   = 5
	wire10SetNWSrc   = 6
	wire10SetNWDst   = 7
	wire10SetNWTOS   = 8
	wire10SetTPSrc   = 9
	wire10SetTPDst   = 10
	wire10Enqueue    = 11
	wireSetMPLSTTL   = 15
	wireDecMPLSTTL   = 16
	wirePushVLAN     = 17
	wirePopVLAN      = 18
	wirePushMPLS     = 19
	wirePopMPLS      = 20
	wireSetQueue     = 21
	wireGroup        = 22
	wireSetNWTTL     = 23
	wireDecNWTTL     = 24
	wireSetField     = 25
	wirePushPBB      = 26
	wirePopPBB       = 27
	wireCopyField    = 28 // OpenFlow 1.5
	wireMeter        = 29 // OpenFlow 1.5
	wireExperimenter = 0xffff
)

// NiciraVendor is the experimenter number of Nicira's extensions to OpenFlow, which Open vSwitch defines.
const NiciraVendor = 0x2320

// Subtypes of Nicira's actions, except those that the file of an action has. Lengths of actions and the
// types of controller2's properties follow.
const (
	nxResubmit       = 1
	nxSetTunnel      = 2
	nxRegMove        = 6
	nxRegLoad        = 7
	nxNote           = 8
	nxSetTunnel64    = 9
	nxResubmitTable  = 14
	nxOutputReg      = 15
	nxWriteMetadata  = 22
	nxSetMPLSTTL     = 25
	nxSetMPLSLabel   = 30
	nxSetMPLSTC      = 31
	nxOutputReg2     = 32
	nxRegLoad2       = 33
	nxNAT            = 36
	nxClone          = 42
	nxGroup          = 40 // OpenFlow 1.0 only
	nxResubmitCT     = 44
	nxDeleteField    = 50
	nxHeader         = 10 // bytes of type, length, vendor and subtype
	maxActionLen     = 0xffff
	controllerID     = 1 // properties of controller2
	controllerReason = 2
	controllerData   = 3
	controllerPause  = 4
	controllerMeter  = 5
)

// Types of instructions (OpenFlow 1.5, 7.2.5).
const (
	instructionGoto     = 1
	instructionMetadata = 2
	instructionWrite    = 3
	instructionApply    = 4
	instructionClear    = 5
	instructionMeter    = 6
)

// controllerReasonCodes are the words for the reasons of packet-in messages. The index is the reason's
// number.
var controllerReasonCodes = []string{"no_match", "action", "invalid_ttl", "action_set", "group", "packet_out"}

func appendZeros(b []byte, n int) []byte {
	for range n {
		b = append(b, 0)
	}
	return b
}

// padFrom appends zeros to b until the length of b[start:] is a multiple of 8, as OpenFlow wants it.
func padFrom(b []byte, start int) []byte { return appendZeros(b, (8-(len(b)-start)%8)%8) }

// endAction adds padding to the action or instruction that begins at b[start], and writes its length into
// its header.
func endAction(b []byte, start int) []byte {
	b = padFrom(b, start)
	binary.BigEndian.PutUint16(b[start+2:], uint16(min(len(b)-start, maxActionLen)))
	return b
}

func appendHeader(b []byte, kind uint16) []byte {
	b = binary.BigEndian.AppendUint16(b, kind)
	return append(b, 0, 0)
}

func appendNX(b []byte, subtype uint16) []byte {
	b = appendHeader(b, wireExperimenter)
	b = binary.BigEndian.AppendUint32(b, NiciraVendor)
	return binary.BigEndian.AppendUint16(b, subtype)
}

// bitsOf returns the offset and the number of bits of a sub-field in 16 bits, as Nicira's actions encode
// them.
func (s Subfield) bitsOf() uint16 { return s.Offset<<6 | (s.Bits - 1) }

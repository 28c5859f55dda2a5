// SPDX-License-Identifier: Apache-2.0

package ofp

import (
	of "weft/openflow"
)

// Kind says what a message is, for example FlowMod or PacketOut. A Kind is the same in all versions of
// OpenFlow, although the type numbers differ.
type Kind uint8

// These kinds are for messages that controllers send.
const (
	KindUnknown Kind = iota
	Hello
	Error
	EchoRequest
	EchoReply
	FeaturesRequest
	GetConfigRequest
	SetConfig
	PacketOut
	FlowMod
	NXFlowMod
	GroupMod
	NXGroupMod
	PortMod
	TableMod
	MeterMod
	BarrierRequest
	RoleRequest
	NXRoleRequest
	GetAsyncRequest
	SetAsync
	NXSetAsync
	NXSetAsync2
	QueueConfigRequest
	BundleControl
	BundleAdd
	SetFlowFormat
	FlowModTableID
	SetPacketInFormat
	SetControllerID
	FlowMonitorCancel
	CTFlushZone
	CTFlush
	Resume
	TLVTableRequest
	TLVTableMod
	// Multipart requests, which OpenFlow 1.0 calls statistics.
	DescStats
	FlowStats
	NXFlowStats
	AggregateStats
	NXAggregateStats
	TableStats
	PortStats
	QueueStats
	GroupStats
	GroupDesc
	GroupFeatures
	MeterStats
	MeterConfig
	MeterFeatures
	TableFeatures
	PortDesc
	TableDesc
	QueueDesc
	FlowMonitor
	NXFlowMonitor
	Kinds // number of kinds
)

// Types in the header of a message, in OpenFlow 1.3 and later. A comment gives the number of OpenFlow 1.0
// where it differs.
const (
	TypeHello        = 0
	TypeError        = 1
	TypeEchoRequest  = 2
	TypeEchoReply    = 3
	TypeExperimenter = 4
	TypeFeatures     = 6
	TypeConfig       = 8
	TypePacketIn     = 10
	TypeFlowRemoved  = 11
	TypePortStatus   = 12
	TypeQueueConfig  = 23 // 21 in OpenFlow 1.0
	TypeRoleReply    = 25
	TypeAsyncReply   = 27
	TypeBundle       = 33
)

// Numbers of the experimenters (vendors) whose messages Weft supports.
const (
	nicira = of.NiciraVendor
	onf    = 0x4f4e4600
)

// messageClass says where a message has the number that identifies it: in the message header, in an
// experimenter header, or in a multipart header with or without an experimenter header.
type messageClass uint8

const (
	plain messageClass = iota // the type is in the message's own header
	experimenter
	multipart
	multipartExperimenter
)

// message is a row of the table of messages. It says which versions have a kind of message, and which
// numbers in the headers identify it.
type message struct {
	kind        Kind
	first, last Version
	class       messageClass
	vendor      uint32
	number      uint32
}

const newest = of.Version15

var messages = []message{
	{Hello, 0, 0xff, plain, 0, 0}, {Error, of.Version10, newest, plain, 0, 1},
	{EchoRequest, of.Version10, newest, plain, 0, 2}, {EchoReply, of.Version10, newest, plain, 0, 3},
	{FeaturesRequest, of.Version10, newest, plain, 0, 5}, {GetConfigRequest, of.Version10, newest, plain, 0, 7},
	{SetConfig, of.Version10, newest, plain, 0, 9}, {PacketOut, of.Version10, newest, plain, 0, 13},
	{FlowMod, of.Version10, newest, plain, 0, 14},
	{PortMod, of.Version10, of.Version10, plain, 0, 15}, {PortMod, of.Version13, newest, plain, 0, 16},
	{GroupMod, of.Version13, newest, plain, 0, 15}, {TableMod, of.Version13, newest, plain, 0, 17},
	{BarrierRequest, of.Version10, of.Version10, plain, 0, 18}, {BarrierRequest, of.Version13, newest, plain, 0, 20},
	{QueueConfigRequest, of.Version10, of.Version10, plain, 0, 20}, {QueueConfigRequest, of.Version13, of.Version13, plain, 0, 22},
	{RoleRequest, of.Version13, newest, plain, 0, 24}, {GetAsyncRequest, of.Version13, newest, plain, 0, 26},
	{SetAsync, of.Version13, newest, plain, 0, 28}, {MeterMod, of.Version13, newest, plain, 0, 29},
	{BundleControl, of.Version14, newest, plain, 0, 33}, {BundleAdd, of.Version14, newest, plain, 0, 34},
	{BundleControl, of.Version13, of.Version13, experimenter, onf, 2300}, {BundleAdd, of.Version13, of.Version13, experimenter, onf, 2301},
	{NXRoleRequest, of.Version10, newest, experimenter, nicira, 10}, {SetFlowFormat, of.Version10, of.Version10, experimenter, nicira, 12},
	{NXFlowMod, of.Version10, newest, experimenter, nicira, 13}, {FlowModTableID, of.Version10, newest, experimenter, nicira, 15},
	{SetPacketInFormat, of.Version10, newest, experimenter, nicira, 16}, {NXSetAsync, of.Version10, newest, experimenter, nicira, 19},
	{SetControllerID, of.Version10, newest, experimenter, nicira, 20}, {FlowMonitorCancel, of.Version10, of.Version10, experimenter, nicira, 21},
	{FlowMonitorCancel, of.Version13, of.Version13, experimenter, onf, 1870},
	{TLVTableMod, of.Version10, newest, experimenter, nicira, 24}, {TLVTableRequest, of.Version10, newest, experimenter, nicira, 25},
	{NXSetAsync2, of.Version10, of.Version13, experimenter, nicira, 27}, {Resume, of.Version10, newest, experimenter, nicira, 28},
	{CTFlushZone, of.Version10, newest, experimenter, nicira, 29}, {NXGroupMod, of.Version10, of.Version10, experimenter, nicira, 31},
	{CTFlush, of.Version10, newest, experimenter, nicira, 32},

	{DescStats, of.Version10, newest, multipart, 0, 0}, {FlowStats, of.Version10, newest, multipart, 0, 1},
	{AggregateStats, of.Version10, newest, multipart, 0, 2}, {TableStats, of.Version10, newest, multipart, 0, 3},
	{PortStats, of.Version10, newest, multipart, 0, 4}, {QueueStats, of.Version10, newest, multipart, 0, 5},
	{GroupStats, of.Version13, newest, multipart, 0, 6}, {GroupDesc, of.Version13, newest, multipart, 0, 7},
	{GroupFeatures, of.Version13, newest, multipart, 0, 8}, {MeterStats, of.Version13, newest, multipart, 0, 9},
	{MeterConfig, of.Version13, newest, multipart, 0, 10}, {MeterFeatures, of.Version13, newest, multipart, 0, 11},
	{TableFeatures, of.Version13, newest, multipart, 0, 12}, {PortDesc, of.Version10, newest, multipart, 0, 13},
	{TableDesc, of.Version14, newest, multipart, 0, 14}, {QueueDesc, of.Version14, newest, multipart, 0, 15},
	{FlowMonitor, of.Version14, newest, multipart, 0, 16},
	{FlowMonitor, of.Version13, of.Version13, multipartExperimenter, onf, 1870},
	{NXFlowStats, of.Version10, of.Version10, multipartExperimenter, nicira, 0},
	{NXAggregateStats, of.Version10, of.Version10, multipartExperimenter, nicira, 1},
	{NXFlowMonitor, of.Version10, of.Version10, multipartExperimenter, nicira, 2},
	{GroupStats, of.Version10, of.Version10, multipartExperimenter, nicira, 7},
	{GroupDesc, of.Version10, of.Version10, multipartExperimenter, nicira, 8},
	{GroupFeatures, of.Version10, of.Version10, multipartExperimenter, nicira, 9},
}

// messageKey is the version, class, experimenter and number of a message. Together they identify its kind.
type messageKey struct {
	version        Version
	class          messageClass
	vendor, number uint32
}

var kindOf = func() map[messageKey]Kind {
	index := map[messageKey]Kind{}
	for _, m := range messages {
		for v := max(m.first, of.Version10); v <= min(m.last, newest); v++ {
			index[messageKey{v, m.class, m.vendor, m.number}] = m.kind
		}
	}
	return index
}()

// multipartType returns the types of multipart requests and replies in the message header.
func multipartType(v Version) (request, reply uint8) {
	if v == of.Version10 {
		return 16, 17
	}
	return 18, 19
}

// Request is a message that Identify has identified. The Decode functions take it.
type Request struct {
	Header
	Kind    Kind
	Message []byte // the whole message
	// Body is the message without its headers: the message header, the experimenter header and the multipart
	// header. It is a part of Message.
	Body []byte
	// More is true if the next message continues this multipart request.
	More bool
	// TLVs is the bridge's TLV map. The fields tun_metadata in the request and in the reply need it. Identify
	// leaves it nil; its caller sets it.
	TLVs *of.TLVMap
	key  messageKey
}

// Identify finds the kind of a message. len(m) must equal the length in the header. If Weft does not support
// the message, the error names the number that is unknown.
func Identify(m []byte) (Request, error) {
	r := Request{Header: ReadHeader(m), Message: m, Body: m[HeaderLen:]}
	r.key = messageKey{version: r.Version, number: uint32(r.Type)}
	request, _ := multipartType(r.Version)
	body := reader{b: r.Body}
	unknown := of.ErrBadType
	switch r.Type {
	case TypeExperimenter:
		r.key.class, r.key.vendor, r.key.number = experimenter, body.u32(), body.u32()
		unknown = of.ErrBadExpType
	case request:
		r.key.class, r.key.number = multipart, uint32(body.u16())
		r.More = body.u16()&1 != 0
		if r.Version != of.Version10 {
			body.skip(4)
		}
		unknown = of.ErrBadMultipart
		if r.key.number == 0xffff {
			r.key.class, r.key.vendor, r.key.number = multipartExperimenter, body.u32(), body.u32()
			unknown = of.ErrBadExpType
			if r.Version == of.Version10 {
				body.skip(4)
			}
		}
	}
	if body.short {
		return r, coded(of.ErrBadRequestLen, "a message of type %d is too short", r.Type)
	}
	r.Body = body.b
	if r.key.vendor != 0 && r.key.vendor != nicira && r.key.vendor != onf {
		return r, coded(of.ErrBadExperimenter, "message of experimenter %#x: expected Nicira's or ONF's", r.key.vendor)
	}
	if r.Kind = kindOf[r.key]; r.Kind == KindUnknown {
		return r, coded(unknown, "message of type %d, number %d: expected one that weft supports", r.Type, r.key.number)
	}
	return r, nil
}

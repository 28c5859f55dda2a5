// SPDX-License-Identifier: Apache-2.0

package ofp

import (
	of "weft/openflow"
)

// AppendHello appends a hello message with a bitmap of the versions that Weft supports.
func AppendHello(b []byte, xid uint32) []byte {
	start := len(b)
	b = Begin(b, newest, TypeHello, xid)
	// the element OFPHET_VERSIONBITMAP, which has a bit for each supported version
	b = be.AppendUint16(be.AppendUint16(b, 1), 8)
	bits := uint32(0)
	for _, v := range []Version{v10, v13, v14, v15} {
		bits |= 1 << v
	}
	return End(be.AppendUint32(b, bits), start)
}

// Negotiate returns the version to use on a connection. hello is the hello message of the other side.
// allowed lists the allowed versions; nil allows all of them. ok is false if the sides have no version in
// common.
func Negotiate(hello []byte, allowed []Version) (v Version, ok bool) {
	if allowed == nil {
		allowed = []Version{v10, v13, v14, v15}
	}
	peer, bitmap := Version(hello[0]), uint64(0)
	for b := hello[HeaderLen:]; len(b) >= 4; {
		kind, n := be.Uint16(b), int(be.Uint16(b[2:]))
		if n < 4 || n > len(b) {
			break
		}
		if kind == 1 && n >= 8 {
			bitmap = uint64(be.Uint32(b[4:]))
		}
		b = b[min((n+7)&^7, len(b)):]
	}
	for _, a := range allowed {
		offered := a <= peer
		if bitmap != 0 {
			offered = bitmap>>a&1 != 0
		}
		if offered && a > v {
			v, ok = a, true
		}
	}
	return v, ok
}

// Features has what a switch tells a controller in the reply to a features request.
type Features struct {
	DatapathID uint64
	Tables     uint8
	Ports      []Port // OpenFlow 1.0 only
}

// Capability bits of a switch (OpenFlow 1.0, 5.3.1; OpenFlow 1.5, 7.3.1).
const (
	capFlowStats  = 1 << 0
	capTableStats = 1 << 1
	capPortStats  = 1 << 2
	capGroupStats = 1 << 3 // OpenFlow 1.1 and later
	capQueueStats = 1 << 6
	capARPMatchIP = 1 << 7  // OpenFlow 1.0
	capBundles    = 1 << 9  // OpenFlow 1.4 and later
	capMonitoring = 1 << 10 // OpenFlow 1.4 and later
)

// actions10 is the bitmap of OpenFlow 1.0's actions that Weft supports: all but
// enqueue.
const actions10 = 1<<11 - 1

// AppendFeatures appends the reply to a features request: datapath id, number of tables,
// capabilities and, in OpenFlow 1.0, ports.
func AppendFeatures(b []byte, v Version, xid uint32, f *Features) []byte {
	start := len(b)
	b = be.AppendUint64(Begin(b, v, TypeFeatures, xid), f.DatapathID)
	b = append(be.AppendUint32(b, 0), f.Tables, 0, 0, 0)
	capabilities := uint32(capFlowStats | capTableStats | capPortStats)
	if v == v10 {
		b = be.AppendUint32(be.AppendUint32(b, capabilities|capARPMatchIP), actions10)
		for i := range f.Ports {
			if len(b)-start+48 <= maxMessageLen {
				b = AppendPort(b, v, &f.Ports[i])
			}
		}
		return End(b, start)
	}
	capabilities |= capGroupStats
	if v >= v14 {
		capabilities |= capBundles | capMonitoring
	}
	return End(be.AppendUint32(be.AppendUint32(b, capabilities), 0), start)
}

// SwitchConfig is the configuration of a switch for one controller. MissSendLen is the largest number of
// bytes that a packet_in has of a frame without a matching flow.
type SwitchConfig struct {
	Flags       uint16
	MissSendLen uint16
}

// DecodeSwitchConfig decodes a set_config message, which has fragment handling in Flags and MissSendLen.
func DecodeSwitchConfig(r *Request) (SwitchConfig, error) {
	b := reader{b: r.Body, tlvs: r.TLVs}
	return SwitchConfig{b.u16(), b.u16()}, b.err("set_config")
}

// AppendSwitchConfig appends the reply to a get_config request.
func AppendSwitchConfig(b []byte, v Version, xid uint32, c SwitchConfig) []byte {
	start := len(b)
	return End(be.AppendUint16(be.AppendUint16(Begin(b, v, TypeConfig, xid), c.Flags), c.MissSendLen), start)
}

// Description has the texts with which a switch describes itself, such as manufacturer and
// serial number.
type Description struct{ Manufacturer, Hardware, Software, Serial, Datapath string }

// AppendDescription appends the body of the reply to a request for the description.
func AppendDescription(b []byte, d *Description) []byte {
	b = text(text(text(b, d.Manufacturer, 256), d.Hardware, 256), d.Software, 256)
	return text(text(b, d.Serial, 32), d.Datapath, 256)
}

// AppendBarrierReply appends the reply to a barrier request. The switch sends it after it has processed all
// earlier messages.
func AppendBarrierReply(b []byte, v Version, xid uint32) []byte {
	kind := uint8(21)
	if v == v10 {
		kind = 19
	}
	start := len(b)
	return End(Begin(b, v, kind, xid), start)
}

// AppendEchoReply appends the reply to the echo request r, with the same data.
func AppendEchoReply(b []byte, r *Request) []byte {
	start := len(b)
	return End(append(Begin(b, r.Version, TypeEchoReply, r.XID), r.Body...), start)
}

// AppendEchoRequest appends an echo request without data. It tests whether the controller still answers.
func AppendEchoRequest(b []byte, v Version, xid uint32) []byte {
	start := len(b)
	return End(Begin(b, v, TypeEchoRequest, xid), start)
}

// Role is the role of a controller among several ones: equal, master or slave. A slave may only read.
type Role uint32

// Values of a role, with their numbers on the wire (OpenFlow 1.5, 7.3.9).
const (
	RoleNoChange Role = iota
	RoleEqual
	RoleMaster
	RoleSlave
)

// DecodeRole decodes a role request. generation is the request's generation_id. hasGeneration is true if the
// switch must check it. That is so for the roles master and slave, but not in Nicira's form of the request,
// which has no generation_id.
func DecodeRole(r *Request) (role Role, generation uint64, hasGeneration bool, err error) {
	b := reader{b: r.Body, tlvs: r.TLVs}
	role = Role(b.u32())
	if r.Kind == NXRoleRequest {
		role++ // Nicira has no RoleNoChange
	} else {
		b.skip(4)
		generation = b.u64()
		hasGeneration = role == RoleMaster || role == RoleSlave
	}
	if err := b.err("role_request"); err != nil {
		return role, 0, false, err
	}
	if role > RoleSlave {
		return role, 0, false, coded(of.ErrRoleBadRole, "role_request: unknown role %d", role)
	}
	return role, generation, hasGeneration, nil
}

// AppendRoleReply appends the reply to a role request. It has the role and, except in Nicira's form, the
// generation_id.
func AppendRoleReply(b []byte, r *Request, role Role, generation uint64) []byte {
	start := len(b)
	if r.Kind == NXRoleRequest {
		b = be.AppendUint32(be.AppendUint32(Begin(b, r.Version, TypeExperimenter, r.XID), nicira), 11)
		return End(be.AppendUint32(b, uint32(role)-1), start)
	}
	b = zeros(be.AppendUint32(Begin(b, r.Version, TypeRoleReply, r.XID), uint32(role)), 4)
	return End(be.AppendUint64(b, generation), start)
}

// AppendRoleStatus appends a role_status message. It tells a controller that its role has changed because
// another controller has requested the role master. OpenFlow 1.0 does not have this message, so
// AppendRoleStatus appends nothing.
func AppendRoleStatus(b []byte, v Version, role Role, generation uint64) []byte {
	start := len(b)
	switch {
	case v >= v14:
		b = Begin(b, v, 30, 0)
	case v == v13:
		b = be.AppendUint32(be.AppendUint32(Begin(b, v, TypeExperimenter, 0), onf), 1911)
	default:
		return b
	}
	// reason 0 (OFPCRR_MASTER_REQUEST): another controller has requested the role
	b = append(be.AppendUint32(b, uint32(role)), 0, 0, 0, 0)
	return End(be.AppendUint64(b, generation), start)
}

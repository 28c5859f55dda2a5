// SPDX-License-Identifier: Apache-2.0

package ofp

import (
	of "weft/openflow"
)

// Port has the properties of a port that OpenFlow messages describe.
type Port struct {
	No    uint32
	MAC   uint64 // hardware address, in the lower 48 bits
	Name  string
	State uint32 // StateDown and StateLive
	// Config has the bits of the port's configuration, such as ConfigDown.
	Config   uint32
	Features uint32 // current features: Feature10MbHD and others
	Speed    uint32 // current speed, kbit/s; 0: unknown
}

// Features of a port (OpenFlow 1.3, 7.2.1). OpenFlow 1.0 has the last three features four bits
// lower, and no speeds above 10 Gbit/s.
const (
	Feature10MbHD = 1 << iota
	Feature10MbFD
	Feature100MbHD
	Feature100MbFD
	Feature1GbHD
	Feature1GbFD
	Feature10GbFD
	Feature40GbFD
	Feature100GbFD
	Feature1TbFD
	FeatureOther
	FeatureCopper
	FeatureFiber
	FeatureAutoneg
)

// SpeedFeature returns the feature bit for a speed in Mbit/s with full or half duplex. It returns 0 if the
// speed is unknown (0).
func SpeedFeature(mbps uint32, full bool) uint32 {
	switch {
	case mbps == 0:
		return 0
	case mbps == 10 && full:
		return Feature10MbFD
	case mbps == 10:
		return Feature10MbHD
	case mbps == 100 && full:
		return Feature100MbFD
	case mbps == 100:
		return Feature100MbHD
	case mbps == 1000 && full:
		return Feature1GbFD
	case mbps == 1000:
		return Feature1GbHD
	case mbps == 10_000:
		return Feature10GbFD
	case mbps == 40_000:
		return Feature40GbFD
	case mbps == 100_000:
		return Feature100GbFD
	case mbps == 1_000_000:
		return Feature1TbFD
	}
	return FeatureOther
}

// features10 converts a port's feature bits to those of OpenFlow 1.0.
func features10(features uint32) uint32 {
	return features&(Feature40GbFD-1) | features&(FeatureCopper|FeatureFiber|FeatureAutoneg)>>4
}

// Bits in a port's state and configuration (OpenFlow 1.5, 7.2.1).
const (
	StateDown = 1
	StateLive = 4 // OpenFlow 1.1 and later

	ConfigDown       = 1 << 0
	ConfigNoRecv     = 1 << 2
	ConfigNoFlood    = 1 << 4 // OpenFlow 1.0
	ConfigNoForward  = 1 << 5
	ConfigNoPacketIn = 1 << 6
)

const (
	nameLen = 16 // size in bytes of a port's name, with the final zero
	macLen  = 6
)

func appendMAC(b []byte, mac uint64) []byte {
	return append(b, byte(mac>>40), byte(mac>>32), byte(mac>>24), byte(mac>>16), byte(mac>>8), byte(mac))
}

// AppendPort appends the description of a port as a struct ofp_port of version v.
func AppendPort(b []byte, v Version, p *Port) []byte {
	switch {
	case v == v10:
		b = text(appendMAC(be.AppendUint16(b, uint16(p.No)), p.MAC), p.Name, nameLen)
		b = be.AppendUint32(be.AppendUint32(b, p.Config), p.State&StateDown)
		return zeros(be.AppendUint32(b, features10(p.Features)), 12)
	case v == v13:
		b = appendMAC(zeros(be.AppendUint32(b, of.WirePort(p.No)), 4), p.MAC)
		b = text(zeros(b, 2), p.Name, nameLen)
		b = be.AppendUint32(be.AppendUint32(b, p.Config&^ConfigNoFlood), p.State)
		return zeros(be.AppendUint32(zeros(be.AppendUint32(b, p.Features), 12), p.Speed), 4)
	}
	start := len(b)
	b = appendMAC(zeros(be.AppendUint32(b, of.WirePort(p.No)), 4), p.MAC)
	b = text(zeros(b, 2), p.Name, nameLen)
	b = be.AppendUint32(be.AppendUint32(b, p.Config&^ConfigNoFlood), p.State)
	b = zeros(be.AppendUint16(be.AppendUint16(b, 0), 32), 4) // the property of Ethernet ports
	b = zeros(be.AppendUint32(b, p.Features), 12)
	b = zeros(be.AppendUint32(b, p.Speed), 4)
	be.PutUint16(b[start+4:], uint16(len(b)-start))
	return b
}

// Reasons in a port_status message.
const (
	PortAdded    = 0
	PortDeleted  = 1
	PortModified = 2
)

// AppendPortStatus appends a port_status message: the port p was added, deleted or modified.
func AppendPortStatus(b []byte, v Version, reason uint8, p *Port) []byte {
	start := len(b)
	b = zeros(append(Begin(b, v, TypePortStatus, 0), reason), 7)
	return End(AppendPort(b, v, p), start)
}

// PortCounters has the counters of a port. Messages have the value unknownCounter for all counters that are
// not here.
type PortCounters struct {
	No                                     uint32
	RxPackets, TxPackets                   uint64
	RxBytes, TxBytes, RxDropped, TxDropped uint64
	DurationNS                             uint64
}

const unknownCounter = ^uint64(0)

// DecodePortSelection decodes a request for information about ports. If it is about all ports, allPorts is
// true.
func DecodePortSelection(r *Request) (port uint32, allPorts bool, err error) {
	b := reader{b: r.Body, tlvs: r.TLVs}
	if len(b.b) == 0 && r.Kind == PortDesc {
		return 0, true, nil
	}
	if r.Version == v10 {
		port = uint32(b.u16())
		return port, port == of.PortNone, b.err("port statistics")
	}
	wire := b.u32()
	if wire == anyPort {
		return 0, true, b.err("port statistics")
	}
	port, ok := of.PortFromWire(wire)
	if !ok {
		return 0, false, coded(of.ErrBadPort, "port %d: expected a port", wire)
	}
	return port, false, b.err("port statistics")
}

// AppendPortStats appends a port's counters as a struct ofp_port_stats of version v. Counters that Weft does
// not have get the value unknownCounter.
func AppendPortStats(b []byte, v Version, c *PortCounters) []byte {
	start := len(b)
	switch {
	case v == v10:
		b = zeros(be.AppendUint16(b, uint16(c.No)), 6)
	case v == v13:
		b = zeros(be.AppendUint32(b, of.WirePort(c.No)), 4)
	default:
		b = appendDuration(be.AppendUint32(zeros(b, 4), of.WirePort(c.No)), c.DurationNS)
	}
	for _, n := range []uint64{c.RxPackets, c.TxPackets, c.RxBytes, c.TxBytes, c.RxDropped, c.TxDropped, 0, 0} {
		b = be.AppendUint64(b, n)
	}
	if v >= v14 {
		b = zeros(be.AppendUint16(be.AppendUint16(b, 0), 40), 4)
	}
	for range 4 { // the counters of frame errors, overruns, checksum errors and collisions
		b = be.AppendUint64(b, unknownCounter)
	}
	if v == v13 {
		b = appendDuration(b, c.DurationNS)
	}
	if v >= v14 {
		be.PutUint16(b[start:], uint16(len(b)-start))
	}
	return b
}

// PortChange is a decoded port_mod. Mask has the bits of Config to change.
type PortChange struct {
	No           uint32
	MAC          uint64
	Config, Mask uint32
	Advertise    uint32
}

// DecodePortMod decodes a port_mod, with which a controller changes the configuration of a port.
func DecodePortMod(r *Request) (PortChange, error) {
	var c PortChange
	b := reader{b: r.Body, tlvs: r.TLVs}
	if r.Version == v10 {
		c.No = uint32(b.u16())
	} else {
		wire, ok := b.u32(), false
		if c.No, ok = of.PortFromWire(wire); !ok {
			return c, coded(of.ErrPortModBadPort, "port_mod: port %d: expected a port", wire)
		}
		b.skip(4)
	}
	for _, x := range b.take(macLen) {
		c.MAC = c.MAC<<8 | uint64(x)
	}
	if r.Version != v10 {
		b.skip(2)
	}
	c.Config, c.Mask = b.u32(), b.u32()
	if r.Version < v14 {
		c.Advertise = b.u32()
	}
	return c, b.err("port_mod")
}

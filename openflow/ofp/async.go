// SPDX-License-Identifier: Apache-2.0

package ofp

import (
	of "weft/openflow"
)

// AsyncConfig says which asynchronous messages a controller gets. Each mask has a bit for each reason of the
// message: packet_in, port_status or flow_removed. Element 0 is for controllers in the role equal or master,
// element 1 for those in the role slave.
type AsyncConfig struct {
	PacketIn, PortStatus, FlowRemoved [2]uint32
}

// DefaultAsync returns the configuration of asynchronous messages of a controller that has not set one
// (OpenFlow 1.5, 6.3.6). In the role slave, a controller gets only port_status messages.
func DefaultAsync(v Version) AsyncConfig {
	c := AsyncConfig{PortStatus: [2]uint32{7, 7}}
	c.PacketIn[0] = 1<<ReasonNoMatch | 1<<ReasonAction
	if v >= v14 {
		c.PacketIn[0] |= 1<<reasonActionSet | 1<<4 | 1<<5
	}
	c.FlowRemoved[0] = 0x3f
	return c
}

// properties returns pointers to the masks of c, in the order of the property types of OpenFlow 1.4: for
// each message first the mask for the role slave, then that for master and equal.
func (c *AsyncConfig) properties() []*uint32 {
	return []*uint32{&c.PacketIn[1], &c.PacketIn[0], &c.PortStatus[1], &c.PortStatus[0], &c.FlowRemoved[1], &c.FlowRemoved[0]}
}

// DecodeSetAsync decodes a request that sets which asynchronous messages a controller gets. oldConfig is the
// controller's present configuration. OpenFlow 1.4 and later change only the masks that the request
// contains.
func DecodeSetAsync(r *Request, oldConfig AsyncConfig) (c AsyncConfig, err error) {
	b := reader{b: r.Body, tlvs: r.TLVs}
	if r.Kind == NXSetAsync || r.Kind == SetAsync && r.Version == v13 {
		for _, masks := range []*[2]uint32{&c.PacketIn, &c.PortStatus, &c.FlowRemoved} {
			masks[0], masks[1] = b.u32(), b.u32()
		}
		return c, b.err("set_async")
	}
	c = oldConfig
	for len(b.b) > 0 {
		kind, body, rest, err := of.CutProperty(b.b)
		if err != nil {
			return c, err
		}
		b.b = rest
		switch masks := c.properties(); {
		case len(body) != 4:
			return c, coded(of.ErrPropBadLen, "set_async: property %d has a wrong length", kind)
		case int(kind) < len(masks):
			*masks[kind] = be.Uint32(body)
		case be.Uint32(body) != 0: // the reasons of role_status, table_status and requestforward
			return c, coded(of.ErrAsyncUnsupported, "set_async: property %d: expected events of packets, ports or flows", kind)
		}
	}
	return c, nil
}

// AppendAsyncReply appends the reply to a get_async request, with the controller's configuration c.
func AppendAsyncReply(b []byte, r *Request, c AsyncConfig) []byte {
	start := len(b)
	b = Begin(b, r.Version, TypeAsyncReply, r.XID)
	if r.Version == v13 {
		for _, masks := range [][2]uint32{c.PacketIn, c.PortStatus, c.FlowRemoved} {
			b = be.AppendUint32(be.AppendUint32(b, masks[0]), masks[1])
		}
		return End(b, start)
	}
	for kind, mask := range c.properties() {
		b = be.AppendUint32(be.AppendUint16(be.AppendUint16(b, uint16(kind)), 8), *mask)
	}
	return End(b, start)
}

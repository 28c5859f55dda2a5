// SPDX-License-Identifier: Apache-2.0

package ofconn

import (
	"weft/internal/clock"
	"weft/openflow"
	"weft/openflow/ofp"
	"weft/openflow/ofproto"
)

// handler has the function that handles one kind of request, and what such a request requires.
type handler struct {
	handle func(c *Conn, r *ofp.Request) error
	// changes is true if the request changes the switch. Slaves, and peers without role
	// Write, may not send such a request.
	changes bool
	parts   bool // the request may be split into several messages
}

// handlers has the handler of each kind of request. The function init fills it, because
// the handler of bundles calls other handlers.
var handlers [ofp.Kinds]handler

func init() {
	ignore := func(*Conn, *ofp.Request) error { return nil }
	reads := func(kind ofp.Kind, handle func(c *Conn, r *ofp.Request) error) {
		handlers[kind] = handler{handle: handle}
	}
	changes := func(kind ofp.Kind, handle func(c *Conn, r *ofp.Request) error) {
		handlers[kind] = handler{handle: handle, changes: true}
	}

	reads(ofp.Hello, ignore)
	reads(ofp.Error, ignore)
	reads(ofp.EchoReply, ignore)
	reads(ofp.EchoRequest, func(c *Conn, r *ofp.Request) error { return c.write(ofp.AppendEchoReply(nil, r)) })
	reads(ofp.BarrierRequest, func(c *Conn, r *ofp.Request) error { return c.write(ofp.AppendBarrierReply(nil, c.version, r.XID)) })
	reads(ofp.FeaturesRequest, (*Conn).features)
	reads(ofp.GetConfigRequest, func(c *Conn, r *ofp.Request) error {
		return c.write(ofp.AppendSwitchConfig(nil, c.version, r.XID, c.switchConfig()))
	})
	reads(ofp.SetConfig, (*Conn).setConfig)
	reads(ofp.TLVTableRequest, func(c *Conn, r *ofp.Request) error {
		return c.write(ofp.AppendTLVTableReply(nil, r, c.service.setup.Switch.TLVs()))
	})
	reads(ofp.SetFlowFormat, (*Conn).setFlowFormat)
	reads(ofp.FlowModTableID, func(c *Conn, r *ofp.Request) error {
		c.tableInCommand = len(r.Body) > 0 && r.Body[0] != 0
		return nil
	})
	reads(ofp.SetPacketInFormat, (*Conn).setPacketInFormat)
	reads(ofp.SetControllerID, (*Conn).setControllerID)
	reads(ofp.RoleRequest, (*Conn).roleRequest)
	reads(ofp.NXRoleRequest, (*Conn).roleRequest)
	reads(ofp.GetAsyncRequest, (*Conn).getAsync)
	for _, kind := range []ofp.Kind{ofp.SetAsync, ofp.NXSetAsync, ofp.NXSetAsync2} {
		reads(kind, (*Conn).setAsync)
	}
	changes(ofp.FlowMod, (*Conn).flowMod)
	changes(ofp.NXFlowMod, (*Conn).flowMod)
	changes(ofp.GroupMod, (*Conn).groupMod)
	changes(ofp.NXGroupMod, (*Conn).groupMod)
	changes(ofp.MeterMod, (*Conn).meterMod)
	changes(ofp.TableMod, (*Conn).tableMod)
	changes(ofp.PortMod, (*Conn).portMod)
	changes(ofp.PacketOut, (*Conn).packetOut)
	changes(ofp.CTFlushZone, (*Conn).flushZone)
	changes(ofp.CTFlush, (*Conn).flushConnections)
	changes(ofp.TLVTableMod, (*Conn).changeTLVs)
	changes(ofp.BundleControl, (*Conn).bundleControl)
	changes(ofp.BundleAdd, (*Conn).bundleAdd)
	changes(ofp.Resume, func(c *Conn, r *ofp.Request) error {
		request, err := ofp.DecodeResume(r)
		if err != nil {
			return err
		}
		return c.service.setup.Switch.Resume(&request)
	})
	statistics(reads)
}

func statistics(reads func(kind ofp.Kind, handle func(c *Conn, r *ofp.Request) error)) {
	reads(ofp.DescStats, (*Conn).describe)
	for _, kind := range []ofp.Kind{ofp.FlowStats, ofp.NXFlowStats} {
		reads(kind, (*Conn).flowStats)
	}
	for _, kind := range []ofp.Kind{ofp.AggregateStats, ofp.NXAggregateStats} {
		reads(kind, (*Conn).aggregate)
	}
	reads(ofp.TableStats, (*Conn).tableStats)
	reads(ofp.TableFeatures, (*Conn).tableFeatures)
	handlers[ofp.TableFeatures].parts = true
	reads(ofp.TableDesc, (*Conn).tableDesc)
	reads(ofp.PortStats, (*Conn).portStats)
	reads(ofp.PortDesc, (*Conn).portDesc)
	reads(ofp.QueueStats, (*Conn).queueStats)
	reads(ofp.QueueDesc, (*Conn).queueDesc)
	reads(ofp.QueueConfigRequest, (*Conn).queueConfig)
	reads(ofp.GroupStats, (*Conn).groupStats)
	reads(ofp.GroupDesc, (*Conn).groupDesc)
	reads(ofp.GroupFeatures, func(c *Conn, r *ofp.Request) error { return c.replyBody(r, ofp.AppendGroupFeatures) })
	reads(ofp.MeterStats, (*Conn).meterStats)
	reads(ofp.MeterConfig, (*Conn).meterConfig)
	reads(ofp.MeterFeatures, func(c *Conn, r *ofp.Request) error { return c.replyBody(r, ofp.AppendMeterFeatures) })
	reads(ofp.FlowMonitor, (*Conn).flowMonitor)
	reads(ofp.NXFlowMonitor, (*Conn).flowMonitor)
	reads(ofp.FlowMonitorCancel, (*Conn).cancelMonitor)
}

func refused(code openflow.ErrorCode, text string) error {
	return &openflow.CodedError{Code: code, Text: text}
}

func (c *Conn) replyBody(r *ofp.Request, body func(b []byte) []byte) error {
	reply := ofp.NewReply(r)
	reply.Add(body)
	return c.writeAll(reply)
}

func (c *Conn) features(r *ofp.Request) error {
	f := ofp.Features{DatapathID: c.service.setup.DatapathID, Tables: openflow.Tables - 1}
	if c.version == openflow.Version10 {
		for _, p := range c.service.setup.Switch.Ports() {
			f.Ports = append(f.Ports, p.Port)
		}
	}
	return c.write(ofp.AppendFeatures(nil, c.version, r.XID, &f))
}

func (c *Conn) describe(r *ofp.Request) error {
	s := &c.service.setup
	d := ofp.Description{Manufacturer: "Weft", Hardware: "userspace switch", Software: s.Version, Serial: "None", Datapath: s.Name}
	return c.replyBody(r, func(b []byte) []byte { return ofp.AppendDescription(b, &d) })
}

// flagInvalidTTL is a flag of set_config that Open vSwitch supports in OpenFlow 1.0. With it,
// frames whose TTL dec_ttl finds expired go to the controller. In later versions set_async has
// that effect.
const flagInvalidTTL = 1 << 2

// fragmentFlags are the bits of a configuration's flags that select the treatment of fragments
// (OFPC_FRAG_*).
const fragmentFlags = 3

// switchConfig returns the configuration that the reply to get_config has.
func (c *Conn) switchConfig() ofp.SwitchConfig {
	fragments := c.service.setup.Switch.Fragments()
	c.mu.Lock()
	defer c.mu.Unlock()
	config := c.config
	config.Flags = uint16(fragments)
	if c.version == openflow.Version10 && c.async.PacketIn[0]&(1<<ofp.ReasonInvalidTTL) != 0 {
		config.Flags |= flagInvalidTTL
	}
	return config
}

func (c *Conn) setConfig(r *ofp.Request) error {
	config, err := ofp.DecodeSwitchConfig(r)
	if err != nil {
		return err
	}
	expired := config.Flags&flagInvalidTTL != 0
	if c.version == openflow.Version10 {
		config.Flags &^= flagInvalidTTL
	}
	switch mode := ofproto.Fragments(config.Flags); {
	case config.Flags > fragmentFlags || mode != ofproto.FragmentsNormal && mode != ofproto.FragmentsDrop && mode != ofproto.FragmentsNXMatch:
		if c.version != openflow.Version10 { // OpenFlow 1.0 has no error code for unsupported flags
			return refused(openflow.ErrConfigBadFlags, "set_config: expected fragments normal, drop or nx-match")
		}
	case mode != c.service.setup.Switch.Fragments():
		c.service.setup.Switch.SetFragments(mode)
	}
	c.config = config
	c.mu.Lock()
	c.missLen = config.MissSendLen
	if c.version == openflow.Version10 {
		for i := range c.async.PacketIn {
			c.async.PacketIn[i] &^= 1 << ofp.ReasonInvalidTTL
		}
		if expired {
			c.async.PacketIn[0] |= 1 << ofp.ReasonInvalidTTL
		}
	}
	c.updateWatching()
	c.mu.Unlock()
	c.service.notePorts()
	c.service.followFrames()
	return nil
}

// Flow formats of OpenFlow 1.0 (Nicira's set_flow_format).
const (
	format10  = 0
	formatNXM = 2
)

func (c *Conn) setFlowFormat(r *ofp.Request) error {
	if len(r.Body) != 4 {
		return refused(openflow.ErrBadRequestLen, "set_flow_format: expected 4 bytes")
	}
	format := r.Body[3]
	if format != format10 && format != formatNXM {
		return refused(openflow.ErrRequestEPERM, "set_flow_format: expected OpenFlow 1.0 or NXM")
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.nxm = format == formatNXM
	return nil
}

func (c *Conn) setPacketInFormat(r *ofp.Request) error {
	if len(r.Body) != 4 || r.Body[3] > uint8(ofp.PacketIn2) {
		return refused(openflow.ErrRequestEPERM, "set_packet_in_format: expected standard, nxm or packet_in2")
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.format = ofp.PacketInFormat(r.Body[3])
	return nil
}

func (c *Conn) setControllerID(r *ofp.Request) error {
	if len(r.Body) != 8 {
		return refused(openflow.ErrBadRequestLen, "set_controller_id: expected 8 bytes")
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.id = uint16(r.Body[6])<<8 | uint16(r.Body[7])
	return nil
}

func (c *Conn) getAsync(r *ofp.Request) error {
	c.mu.Lock()
	async := c.async
	c.mu.Unlock()
	return c.write(ofp.AppendAsyncReply(nil, r, async))
}

func (c *Conn) setAsync(r *ofp.Request) error {
	c.mu.Lock()
	async, err := ofp.DecodeSetAsync(r, c.async)
	if err == nil {
		c.async = async
	}
	c.updateWatching()
	c.mu.Unlock()
	c.service.followFrames()
	return err
}

func (c *Conn) flushZone(r *ofp.Request) error {
	if len(r.Body) != 8 {
		return refused(openflow.ErrBadRequestLen, "ct_flush_zone: expected 8 bytes")
	}
	for _, b := range r.Body[:6] {
		if b != 0 {
			return refused(openflow.ErrMustBeZero, "ct_flush_zone: expected zeros before the zone")
		}
	}
	zone := uint16(r.Body[6])<<8 | uint16(r.Body[7])
	return c.service.setup.Switch.FlushConnections(&ofp.CTMatch{Zone: &zone})
}

func (c *Conn) flushConnections(r *ofp.Request) error {
	m, err := ofp.DecodeCTFlush(r)
	if err != nil {
		return err
	}
	return c.service.setup.Switch.FlushConnections(&m)
}

func (c *Conn) changeTLVs(r *ofp.Request) error {
	mod, err := ofp.DecodeTLVTableMod(r)
	if err != nil {
		return err
	}
	return c.service.setup.Switch.ChangeTLVs(&mod)
}

func (c *Conn) packetOut(r *ofp.Request) error {
	out, err := ofp.DecodePacketOut(r)
	if err != nil {
		return err
	}
	return c.service.setup.Switch.Send(&openflow.PacketOut{Flow: out.Match.Value, Frame: out.Frame, Actions: out.Actions})
}

func nowNS() uint64 { return clock.Monotonic() }

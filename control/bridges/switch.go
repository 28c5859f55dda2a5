// SPDX-License-Identifier: Apache-2.0

package bridges

import (
	"encoding/binary"
	"errors"
	"hash/fnv"
	"log/slog"
	"math"
	"net"
	"time"

	"weft/api"
	"weft/conntrack"
	"weft/control/change"
	"weft/control/ofconn"
	"weft/control/pipeline"
	"weft/control/ports"
	"weft/control/tracking"
	"weft/openflow"
	"weft/openflow/ofp"
	"weft/openflow/ofproto"
)

// ofSwitch implements ofconn.Switch for one bridge. OpenFlow requests become changes and reads of the
// pipeline, the ports and the tracked connections.
//
// It has no state and no lock of its own, and the goroutines of all connections call it concurrently.
// Its methods take the configuration lock, and the locks of the packages that they call.
type ofSwitch struct {
	configuration *change.Configuration
	bridge        *pipeline.Bridge
	ports         *ports.Ports
	tracking      *tracking.Connections
	log           *slog.Logger
}

// newSwitch returns the ofconn.Switch of bridge b.
func newSwitch(configuration *change.Configuration, b *pipeline.Bridge, ps *ports.Ports, connections *tracking.Connections, log *slog.Logger) *ofSwitch {
	return &ofSwitch{configuration: configuration, bridge: b, ports: ps, tracking: connections, log: log}
}

// inForce returns the error of a change that was refused. If the change is in force but was not saved,
// inForce logs the error and returns nil, because OpenFlow has no reply for this case.
func (s *ofSwitch) inForce(subject string, err error) error {
	var unsaved *change.UnsavedError
	if errors.As(err, &unsaved) {
		s.log.Error(subject, "error", err)
		return nil
	}
	return err
}

// update makes a change in a transaction. It calls author.Begin before the change and author.End after the
// change's last event, so that the author recognizes its own events.
func (s *ofSwitch) update(subject string, author ofconn.Author, fn func(tx *change.Tx) error) error {
	return s.inForce(subject, s.configuration.Update(func(tx *change.Tx) error {
		author.Begin()
		err := fn(tx)
		tx.At(change.Tell, s, func() error { author.End(); return nil }) // at the end of Tell, after the change's events
		return err
	}))
}

// noAuthor is the Author of changes that do not change flows, and so cause no events.
type noAuthor struct{}

func (noAuthor) Begin() {}
func (noAuthor) End()   {}

// ApplyEach applies changes of flows in order. A refused change does not affect the others. errs has the
// error of each change, or nil.
func (s *ofSwitch) ApplyEach(mods []openflow.FlowMod, author ofconn.Author) (errs []error) {
	_ = s.update("flows", author, func(tx *change.Tx) error { errs = s.bridge.ApplyEach(tx, mods); return nil }) // refusals are in errs
	return errs
}

// ApplyBundle applies all changes or none. If it refuses a change, it returns the index of that change.
func (s *ofSwitch) ApplyBundle(items []ofproto.BundleItem, author ofconn.Author) (failed int, err error) {
	err = s.update("bundle", author, func(tx *change.Tx) (err error) { failed, err = s.bridge.ApplyBundle(tx, items); return err })
	return failed, err
}

// PullCounts reads the workers' counters into the statistics of the rules.
func (s *ofSwitch) PullCounts() {
	s.configuration.View(func(tx *change.Tx) {
		s.bridge.Pipeline().PullCounts(tx)
	})
}

// scanMost limits the rules that one call of ScanRules returns.
const scanMost = 256

// ScanRules appends copies of the rules that the filter selects. It begins at the index slot of the rule
// table. It returns the index at which the next call continues, and whether rules remain.
func (s *ofSwitch) ScanRules(filter *openflow.FlowMod, slot uint32, rules []ofproto.Rule) (_ []ofproto.Rule, next uint32, remaining bool) {
	s.bridge.Read(func(tables *ofproto.Tables) {
		next, remaining = tables.Scan(filter, slot, scanMost, func(r *ofproto.Rule) { rules = append(rules, *r) })
	})
	return rules, next, remaining
}

// ApplyGroups applies changes of groups, all of them or none.
func (s *ofSwitch) ApplyGroups(mods []openflow.GroupMod, author ofconn.Author) error {
	return s.update("groups", author, func(tx *change.Tx) error { _, err := s.bridge.ApplyGroups(tx, mods); return err })
}

// Groups returns the group with this ID, or all groups for openflow.GroupAny.
func (s *ofSwitch) Groups(id uint32) (list []ofconn.Group) {
	s.configuration.View(func(tx *change.Tx) {
		for _, g := range s.bridge.Groups(tx, id) {
			list = append(list, ofconn.Group{Group: g.Group, Stats: g.Stats, Flows: g.Flows})
		}
	})
	return list
}

// ApplyMeters applies changes of meters, all of them or none.
func (s *ofSwitch) ApplyMeters(mods []openflow.MeterMod, author ofconn.Author) error {
	return s.update("meters", author, func(tx *change.Tx) error { _, err := s.bridge.ApplyMeters(tx, mods); return err })
}

// Meters returns the meter with this ID, or all meters for openflow.MeterAll.
func (s *ofSwitch) Meters(id uint32) (list []ofconn.Meter) {
	s.configuration.View(func(tx *change.Tx) {
		for _, m := range s.bridge.Meters(tx, id) {
			list = append(list, ofconn.Meter{Meter: m.Meter, Counters: ofp.MeterCounters{ID: m.ID, Flows: uint32(m.Flows),
				Packets: m.Packets, Bytes: m.Bytes, DurationNS: m.AgeNS, Bands: m.Dropped}})
		}
	})
	return list
}

// Queues lists the queues of all ports of the bridge, sorted by port and queue number.
func (s *ofSwitch) Queues() (list []ofp.Queue) {
	s.configuration.View(func(tx *change.Tx) {
		for _, q := range s.bridge.Queues(tx) {
			list = append(list, ofp.Queue{Port: q.Port, ID: q.ID, TxPackets: q.Packets, TxBytes: q.Bytes, TxErrors: q.Dropped, DurationNS: q.AgeNS})
		}
	})
	return list
}

// Tables returns the use and the settings of each flow table.
func (s *ofSwitch) Tables() []ofp.TableState {
	var list []ofp.TableState
	s.bridge.Read(func(tables *ofproto.Tables) {
		for t := range openflow.Tables - 1 {
			config, flows := tables.Config(uint8(t))
			limit := uint32(config.Limit)
			if limit == 0 {
				limit = pipeline.MaxFlows
			}
			list = append(list, ofp.TableState{ID: uint8(t), Flows: uint32(flows), MaxEntries: limit, Evict: config.Evict,
				Lookups: tables.Lookups(uint8(t))})
		}
	})
	return list
}

// SetEviction sets whether a full table evicts a flow to make room for a new one. openflow.TableAll
// stands for all tables.
func (s *ofSwitch) SetEviction(table uint8, evict bool) error {
	return s.configuration.Update(func(tx *change.Tx) error {
		number := int(table)
		if table == openflow.TableAll {
			number = -1
		}
		return s.bridge.Configure(tx, number, func(c *ofproto.TableConfig) error {
			c.Evict = evict
			return nil
		})
	})
}

// TLVs returns the bridge's map from Geneve options to fields.
func (s *ofSwitch) TLVs() *openflow.TLVMap { return s.bridge.TLVs() }

// ChangeTLVs changes the bridge's TLV map. If it refuses a part of the change, nothing changes.
func (s *ofSwitch) ChangeTLVs(mod *openflow.TLVMod) error {
	return s.update("TLV map", noAuthor{}, func(tx *change.Tx) error { return s.bridge.ChangeTLVs(tx, mod) })
}

// unknownNS is the duration in OpenFlow messages that means an unknown duration (all bits of the seconds
// set).
const unknownNS = 0xffffffff * uint64(time.Second)

// Ports describes the ports of the bridge that flows can name, with their counters.
func (s *ofSwitch) Ports() []ofconn.Port {
	list, _ := s.ports.List("") // error ignored: "" stands for all ports
	var all []ofconn.Port
	view := s.bridge.View()
	for _, p := range list {
		if _, own := view.PortByName(p.Name); !own {
			continue
		}
		var dropped uint64
		for _, n := range p.Stats.RxDrops {
			dropped += n
		}
		port := ofconn.Port{Port: ofp.Port{No: p.InFlows(), Name: p.Name, MAC: portMAC(p.Name)},
			Counters: ofp.PortCounters{No: p.InFlows(), RxPackets: p.Stats.RxPackets, TxPackets: p.Stats.TxPackets, RxBytes: p.Stats.RxBytes,
				TxBytes: p.Stats.TxBytes, RxDropped: dropped, TxDropped: p.Stats.TxDrops, DurationNS: unknownNS}}
		describeLink(&port.Port, p.Link)
		if port.State = ofp.StateDown; p.State == ports.StateUp {
			port.State = ofp.StateLive
		}
		if p.Options["admin"] == "down" {
			port.Config |= ofp.ConfigDown
		}
		if p.Options["flood"] == "off" {
			port.Config |= ofp.ConfigNoFlood
		}
		all = append(all, port)
	}
	return all
}

// SetPortConfig sets or clears ofp.ConfigDown and ofp.ConfigNoFlood of a port, as the bits in config say.
func (s *ofSwitch) SetPortConfig(number, config uint32) error {
	name, _ := s.bridge.View().PortName(number) // an unknown port's name is "", which SetAdmin refuses
	return s.ports.SetAdmin(name, ports.Admin{Down: config&ofp.ConfigDown != 0, NoFlood: config&ofp.ConfigNoFlood != 0})
}

// Send executes the actions of a packet-out on the frame in it.
func (s *ofSwitch) Send(request *openflow.PacketOut) error {
	_, err := s.bridge.Send(request)
	return s.inForce("flows of learn actions", err)
}

// Resume continues a translation that the action controller(pause) has interrupted. The request has the
// continuation: the state of the translation, which the controller has sent back.
func (s *ofSwitch) Resume(r *ofp.ResumeRequest) error {
	return s.inForce("flows of learn actions", s.bridge.Resume(&openflow.PacketOut{Flow: r.Metadata.Value, Frame: r.Frame}, r.Continuation))
}

// Fragments returns how flow table look-ups treat IP fragments.
func (s *ofSwitch) Fragments() ofproto.Fragments { return s.bridge.Fragments() }

// SetFragments sets how look-ups treat IP fragments, until the control process restarts.
func (s *ofSwitch) SetFragments(mode ofproto.Fragments) {
	s.configuration.Do(func(tx *change.Tx) { s.bridge.SetFragments(tx, mode) })
}

// FlushConnections removes the tracked connections that m selects.
func (s *ofSwitch) FlushConnections(m *ofp.CTMatch) error {
	tuple := func(t *ofp.CTTuple) conntrack.TupleFilter {
		f := conntrack.TupleFilter{Src: t.Src, Dst: t.Dst, SrcPort: t.SrcPort, DstPort: t.DstPort, ID: t.ID, Type: t.Type, Code: t.Code}
		if *t != (ofp.CTTuple{}) && m.Proto != 0 {
			f.Proto = &m.Proto
		}
		return f
	}
	f := conntrack.Filter{Zone: m.Zone, Mark: m.Mark, MarkMask: m.MarkMask, Label: m.Label, LabelMask: m.LabelMask,
		Orig: tuple(&m.Orig), Reply: tuple(&m.Reply)}
	if m.Proto != 0 && f.Orig.Proto == nil && f.Reply.Proto == nil {
		f.Orig.Proto = &m.Proto
	}
	_, err := s.tracking.Flush(&f)
	return err
}

// describeLink adds the MAC address, speed and medium of a port's device to the port's description. l is
// nil if the port has no device.
func describeLink(p *ofp.Port, l *api.Link) {
	if l == nil {
		return
	}
	if mac, err := net.ParseMAC(l.MAC); err == nil && len(mac) == 6 {
		p.MAC = binary.BigEndian.Uint64(append([]byte{0, 0}, mac...))
	}
	p.Speed = uint32(min(uint64(l.Mbps)*1000, math.MaxUint32))
	p.Features = ofp.SpeedFeature(l.Mbps, l.Duplex == "full")
	switch l.Medium {
	case "copper":
		p.Features |= ofp.FeatureCopper
	case "fiber":
		p.Features |= ofp.FeatureFiber
	}
	if l.Negotiated {
		p.Features |= ofp.FeatureAutoneg
	}
}

// portMAC computes a locally administered MAC address from a port's name. OpenFlow requires an address,
// and ports without a network device have none.
func portMAC(name string) uint64 {
	h := fnv.New64a()
	h.Write([]byte(name))
	b := h.Sum(nil)
	return binary.BigEndian.Uint64(b)>>24&0xffffffffff | 0x02<<40
}

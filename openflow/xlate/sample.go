// SPDX-License-Identifier: Apache-2.0

package xlate

import (
	"weft/flowtable"
	"weft/openflow"
)

// Exporters send samples of a bridge's frames to collectors, as in ovs-vswitchd.conf.db(5), tables
// IPFIX, sFlow and Flow_Sample_Collector_Set. An exporter samples frames that enter the bridge, frames
// at each of their outputs, or frames for which the action sample is executed.

// Exporter says which frames of the bridge a PortExporter samples. It is immutable.
type Exporter struct {
	// Arriving and Leaving are the probabilities with which frames are sampled when they enter the
	// bridge or leave it: 0 means no frame, 1<<32 - 1 means every frame.
	Arriving, Leaving uint32
	// OfSet is true if the exporter also samples frames for which the action sample is executed with the
	// collector_set_id Set.
	OfSet bool
	Set   uint32
	Snap  uint16 // number of bytes of a frame that the exporter needs
	// Tunnels is true if the samples have the tunnel fields of frames from tunnels.
	Tunnels bool
}

// MaxExporters is the largest number of exporters of a bridge. Translations ignore further exporters.
const MaxExporters = 32

// exporters returns the exporters of the current bridge, at most MaxExporters.
func (x *xlate) exporters() []PortInfo {
	list := x.env.Exporters()
	return list[:min(len(list), MaxExporters)]
}

// sampleArrival emits an OpSample for each exporter that samples frames that enter the bridge.
func (x *xlate) sampleArrival() {
	for i, list := 0, x.exporters(); i < len(list); i++ {
		if e := list[i].Exporter; e.Arriving != 0 {
			x.emitSample(e, e.Arriving, flowtable.SampleTag{Exporter: uint16(list[i].At())})
		}
	}
}

// sampleOutput emits an OpSample for each exporter that samples frames that leave the bridge. The frame
// leaves through "port". The caller has emitted all changes of the frame by earlier actions.
func (x *xlate) sampleOutput(port *PortInfo) {
	for i, list := 0, x.exporters(); i < len(list); i++ {
		if e := list[i].Exporter; e.Leaving != 0 {
			x.emitSample(e, e.Leaving, flowtable.SampleTag{Exporter: uint16(list[i].At()), Output: uint16(port.At()), Egress: true})
		}
	}
}

// sample executes the action sample, for the exporter with the action's collector_set_id.
func (x *xlate) sample(s *openflow.SampleSpec) {
	for i, list := 0, x.exporters(); i < len(list); i++ {
		e := list[i].Exporter
		if !e.OfSet || e.Set != s.Collectors {
			continue
		}
		tag := flowtable.SampleTag{Exporter: uint16(list[i].At()), Egress: s.Direction == openflow.SampleEgress}
		if s.Port != openflow.PortNone {
			x.usedPorts = true
			if port, ok := x.env.Port(s.Port); ok {
				tag.Output, tag.Egress = uint16(port.At()), s.Direction != openflow.SampleIngress
			}
		}
		x.commit()
		domain, point := x.observed(s.Domain, s.DomainSrc), x.observed(s.Point, s.PointSrc)
		x.emit(flowtable.Action{Op: flowtable.OpObserve, U64: uint64(domain)<<32 | uint64(point)})
		x.emitSample(e, uint32(s.Probability)<<16|uint32(s.Probability), tag)
		return
	}
	x.usedPorts = true
	x.note("no exporter has this collector_set_id")
}

// observed returns the observation domain or the observation point of a sample: v, or the value of
// the field src if the action names a field.
func (x *xlate) observed(v uint32, src openflow.Subfield) uint32 {
	switch {
	case src.Field == openflow.FNone:
		return v
	case !x.hasField(src.Field):
		return 0
	}
	return uint32(x.read(src)[1])
}

// emitSample emits an OpSample. At the end of the translation, countOutputs writes the number of outputs
// into it. A sample with tunnel fields needs no bits in the mask, because the worker takes these fields
// from the frame's key.
func (x *xlate) emitSample(e *Exporter, probability uint32, tag flowtable.SampleTag) {
	x.emit(flowtable.Action{Op: flowtable.OpSample, U16: e.Snap, U32: probability, U64: tag.Word()})
	x.sampled = x.sampled || !x.halted
}

// countOutputs writes into each sample how many outputs the frame has. All samples of a frame get the
// same number, because a collector wants to know whether the switch forwards the frame.
func (x *xlate) countOutputs() {
	outputs, output, unknown := 0, uint16(0), false
	for i := range x.actions {
		switch a := &x.actions[i]; a.Op {
		case flowtable.OpOutput, flowtable.OpOutputTruncated:
			outputs, output = outputs+1, uint16(a.U32)
		case flowtable.OpTunnel:
			outputs, output = outputs+1, a.U16
		case flowtable.OpRecirc:
			unknown = true
		}
	}
	if outputs != 1 {
		output = 0
	}
	for i := range x.actions {
		if a := &x.actions[i]; a.Op == flowtable.OpSample {
			tag := flowtable.TagOf(a.U64)
			tag.Outputs, tag.Unknown = uint8(min(outputs, 255)), unknown
			if tag.Output == 0 {
				tag.Output = output
			}
			a.U64 = tag.Word()
		}
	}
}

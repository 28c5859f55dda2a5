// SPDX-License-Identifier: Apache-2.0

package openflow

import (
	"fmt"
	"strconv"
	"strings"

	"weft/flowtable"
)

// Subtypes of Nicira's four actions for sample.
const (
	nxSample  = 29
	nxSample2 = 38
	nxSample3 = 41
	nxSample4 = 51
)

func init() {
	addAction(ActSample, actionRow{words: map[string]actionParse{"sample": (*actionParser).sample},
		format: func(a *Action, names Names) string { return a.Sample.format(names) }, encode: appendSample,
		nicira: map[uint16]niciraRow{nxSample: {14, decodeSample}, nxSample2: {22, decodeSample}, nxSample3: {22, decodeSample}, nxSample4: {30, (*actionDecoder).decodeSample4}}})
}

// The action sample (ovs-actions(7)) reports some frames by IPFIX to the collectors of the set in its
// argument. It does nothing if no IPFIX exporter of the switch has the set's number.

// SampleSpec holds the arguments of a sample action.
type SampleSpec struct {
	Probability   uint16 // share of the frames, in units of 1/65535; not 0
	Collectors    uint32 // number of the set of collectors
	Domain, Point uint32 // IPFIX numbers of the observation domain and the observation point
	// If DomainSrc or PointSrc names a field, the frame's value of this sub-field replaces Domain or Point. The
	// sub-fields have at most 32 bits. FNone means no field.
	DomainSrc, PointSrc Subfield
	Port                uint32 // sampling port, which the report names as output port; PortNone: none
	Direction           uint8  // SampleIngress, SampleEgress, or 0 if the action names none
}

// Values of the direction in a sample action.
const (
	SampleIngress = 1
	SampleEgress  = 2
)

func (p *actionParser) sample(t token) (Action, error) {
	s := &SampleSpec{Port: PortNone}
	for text := t.value; ; {
		w, rest, ok := nextToken(text)
		if !ok {
			break
		}
		text = rest
		if err := p.sampleWord(s, w); err != nil {
			return Action{}, err
		}
	}
	if s.Probability == 0 {
		return Action{}, wrong(t.text, "sample(probability=NUMBER,collector_set_id=NUMBER), with a probability from 1 to 65535")
	}
	return Action{Kind: ActSample, Sample: s}, nil
}

func (p *actionParser) sampleWord(s *SampleSpec, t token) (err error) {
	number := func(to *uint32) {
		v, ok := parseUint(t.value, 1<<32-1)
		if *to = uint32(v); !ok {
			err = wrong(t.text, "a number of at most 32 bits")
		}
	}
	switch t.key {
	case "probability":
		return parseUint16(t, &s.Probability)
	case "collector_set_id":
		number(&s.Collectors)
	case "obs_domain_id":
		s.Domain, s.DomainSrc, err = p.observation(t)
	case "obs_point_id":
		s.Point, s.PointSrc, err = p.observation(t)
	case "sampling_port":
		s.Port, err = parsePort(t.value, p.names)
	case "ingress":
		s.Direction = SampleIngress
	case "egress":
		s.Direction = SampleEgress
	default:
		return wrong(t.text, "probability, collector_set_id, obs_domain_id, obs_point_id, sampling_port, ingress or egress")
	}
	return err
}

// observation parses the argument obs_domain_id or obs_point_id of sample: a number, or a sub-field whose
// value is the number.
func (p *actionParser) observation(t token) (v uint32, src Subfield, err error) {
	if v, ok := parseUint(t.value, 1<<32-1); ok {
		return uint32(v), src, nil
	}
	src, err = p.subfield(t.value)
	if err != nil || !mayObserve(src) {
		return 0, src, wrong(t.text, "a number of at most 32 bits, or a field of at most 32 bits such as reg0[]")
	}
	return 0, src, p.check.readable(t.text, src)
}

// mayObserve reports whether a sub-field can be an observation domain or point. In the encoded action, the
// field must have a header of 4 bytes, and the sub-field at most 32 bits.
func mayObserve(s Subfield) bool {
	return s.Bits <= 32 && (s.Field.IsTLV() || len(s.Field.header(Version10).append(nil, false)) == 4)
}

func (s *SampleSpec) format(names Names) string {
	var b strings.Builder
	fmt.Fprintf(&b, "sample(probability=%d,collector_set_id=%d,obs_domain_id=%s,obs_point_id=%s", s.Probability, s.Collectors,
		formatObservation(s.Domain, s.DomainSrc), formatObservation(s.Point, s.PointSrc))
	if s.Port != PortNone {
		b.WriteString(",sampling_port=" + formatPort(s.Port, names))
	}
	b.WriteString([]string{"", ",ingress", ",egress"}[s.Direction] + ")")
	return b.String()
}

// formatSample returns the text of a datapath action OpSample. "exporter" in the text is the data path's
// number of the IPFIX exporter. The text of flows has the number of a collector set instead.
func formatSample(a *flowtable.Action) string {
	tag, way := flowtable.TagOf(a.U64), "ingress"
	if tag.Egress {
		way = "egress"
	}
	return fmt.Sprintf("sample(%.4g%%,exporter=%d,%s)", 100*float64(a.U32)/(1<<32-1), tag.Exporter, way)
}

func formatObservation(v uint32, src Subfield) string {
	if src.Field != FNone {
		return src.String()
	}
	return strconv.FormatUint(uint64(v), 10)
}

// appendSample appends a sample action. Nicira has four versions of it; appendSample uses the oldest one
// that can carry the arguments.
func appendSample(e *actionEncoder, b []byte, a *Action) []byte {
	s := a.Sample
	subtype := uint16(nxSample)
	switch {
	case s.DomainSrc.Field != FNone || s.PointSrc.Field != FNone:
		b = be.AppendUint32(be.AppendUint16(appendNX(b, nxSample4), s.Probability), s.Collectors)
		b = e.appendObservation(e.appendObservation(b, s.Domain, s.DomainSrc), s.Point, s.PointSrc)
		return appendZeros(append(be.AppendUint16(b, uint16(s.Port)), s.Direction), 5)
	case s.Direction != 0:
		subtype = nxSample3
	case s.Port != PortNone:
		subtype = nxSample2
	}
	b = be.AppendUint16(appendNX(b, subtype), s.Probability)
	b = be.AppendUint32(be.AppendUint32(be.AppendUint32(b, s.Collectors), s.Domain), s.Point)
	if subtype == nxSample {
		return b
	}
	return appendZeros(append(be.AppendUint16(b, uint16(s.Port)), s.Direction), 5)
}

// appendObservation appends an observation domain or point in 8 bytes. If it comes from the sub-field src,
// these are the field's header and the range of bits. Otherwise they are 0 and the number v.
func (e *actionEncoder) appendObservation(b []byte, v uint32, src Subfield) []byte {
	if src.Field == FNone {
		return be.AppendUint32(appendZeros(b, 4), v)
	}
	return appendZeros(be.AppendUint16(e.tlvs.header(src.Field, Version10).append(b, false), src.bitsOf()), 2)
}

// decodeObservation decodes the 8 bytes that appendObservation writes.
func (d *actionDecoder) decodeObservation(b []byte) (v uint32, src Subfield, err error) {
	if be.Uint32(b) == 0 {
		return be.Uint32(b[4:]), src, nil
	}
	src, rest, err := readSubfield(b[:4], be.Uint16(b[4:]), d.tlvs)
	if err == nil && (len(rest) != 0 || !mayObserve(src)) {
		err = coded(ErrActionBadArgument, "sample: expected at most 32 bits of a field")
	}
	if err == nil {
		err = d.codeOf(src, d.check.readable("sample", src))
	}
	return 0, src, err
}

// decodeSample4 decodes the fourth version of Nicira's sample action. Only this version can take the
// observation domain and point from fields. b begins behind the subtype.
func (d *actionDecoder) decodeSample4(_ uint16, b []byte) (Action, error) {
	s := &SampleSpec{Probability: be.Uint16(b), Collectors: be.Uint32(b[2:])}
	var err error
	if s.Domain, s.DomainSrc, err = d.decodeObservation(b[6:]); err != nil {
		return Action{}, err
	}
	if s.Point, s.PointSrc, err = d.decodeObservation(b[14:]); err != nil {
		return Action{}, err
	}
	s.Port, s.Direction = uint32(be.Uint16(b[22:])), b[24]
	return s.checked(b[25:])
}

// decodeSample decodes the first three versions of Nicira's sample action. b begins behind the subtype.
func decodeSample(_ *actionDecoder, subtype uint16, b []byte) (Action, error) {
	s := &SampleSpec{Probability: be.Uint16(b), Collectors: be.Uint32(b[2:]), Domain: be.Uint32(b[6:]), Point: be.Uint32(b[10:]), Port: PortNone}
	rest := b[14:]
	if subtype != nxSample {
		s.Port = uint32(be.Uint16(rest))
		rest = rest[2:]
	}
	if subtype == nxSample3 {
		s.Direction, rest = rest[0], rest[1:]
	}
	return s.checked(rest)
}

// checked returns the sample action. It returns an error if an argument is out of range, or if a byte of
// "padding", which follows the arguments, is not 0.
func (s *SampleSpec) checked(padding []byte) (Action, error) {
	for _, c := range padding {
		if c != 0 {
			return Action{}, coded(ErrActionMustBeZero, "sample: expected zeros behind the arguments")
		}
	}
	if s.Probability == 0 || s.Direction > SampleEgress {
		return Action{}, Errorf(ErrActionBadArgument, "sample: probability %d, direction %d: expected a probability from 1 on and a direction up to %d", s.Probability, s.Direction, SampleEgress)
	}
	return Action{Kind: ActSample, Sample: s}, nil
}

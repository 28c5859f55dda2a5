// SPDX-License-Identifier: Apache-2.0

package openflow

import (
	"fmt"
	"strings"
)

// Subtypes of Nicira's actions.
const (
	nxSample  = 29
	nxSample2 = 38
	nxSample3 = 41
)

func init() {
	addAction(ActSample, actionRow{words: map[string]actionParse{"sample": (*actionParser).sample},
		format: func(a *Action, names Names) string { return a.Sample.format(names) }, encode: appendSample,
		nicira: map[uint16]niciraRow{nxSample: {14, decodeSample}, nxSample2: {22, decodeSample}, nxSample3: {22, decodeSample}}})
}

// The action sample (ovs-actions(7)) sends some frames to the collectors of IPFIX. Weft
// has no collectors, so that the action does nothing, as in Open vSwitch without them.

// SampleSpec holds the arguments of sample.
type SampleSpec struct {
	Probability   uint16 // of 65535, not 0
	Collectors    uint32 // number of the set of collectors
	Domain, Point uint32 // of the observation
	Port          uint32 // sampling port; PortNone: none
	Direction     uint8  // sampleIngress, sampleEgress, or 0
}

const (
	sampleIngress = 1
	sampleEgress  = 2
)

func (p *actionParser) sample(t token) (Action, error) {
	s := &SampleSpec{Port: PortNone}
	for text := t.value; ; {
		w, rest, ok := nextToken(text)
		if !ok {
			break
		}
		text = rest
		if err := s.word(w, p.names); err != nil {
			return Action{}, err
		}
	}
	if s.Probability == 0 {
		return Action{}, wrong(t.text, "sample(probability=NUMBER,collector_set_id=NUMBER), with a probability from 1 to 65535")
	}
	return Action{Kind: ActSample, Sample: s}, nil
}

func (s *SampleSpec) word(t token, names Names) (err error) {
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
		number(&s.Domain)
	case "obs_point_id":
		number(&s.Point)
	case "sampling_port":
		s.Port, err = parsePort(t.value, names)
	case "ingress":
		s.Direction = sampleIngress
	case "egress":
		s.Direction = sampleEgress
	default:
		return wrong(t.text, "probability, collector_set_id, obs_domain_id, obs_point_id, sampling_port, ingress or egress")
	}
	return err
}

func (s *SampleSpec) format(names Names) string {
	var b strings.Builder
	fmt.Fprintf(&b, "sample(probability=%d,collector_set_id=%d,obs_domain_id=%d,obs_point_id=%d", s.Probability, s.Collectors, s.Domain, s.Point)
	if s.Port != PortNone {
		b.WriteString(",sampling_port=" + formatPort(s.Port, names))
	}
	b.WriteString([]string{"", ",ingress", ",egress"}[s.Direction] + ")")
	return b.String()
}

// appendSample appends the oldest of Nicira's three actions that carries the arguments.
func appendSample(_ *actionEncoder, b []byte, a *Action) []byte {
	s := a.Sample
	subtype := uint16(nxSample)
	switch {
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

// decodeSample decodes a sample. The argument b has the bytes of the action after the
// subtype.
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
	for _, c := range rest {
		if c != 0 {
			return Action{}, coded(ErrActionMustBeZero, "sample: expected zeros behind the arguments")
		}
	}
	if s.Probability == 0 || s.Direction > sampleEgress {
		return Action{}, Errorf(ErrActionBadArgument, "sample: probability %d, direction %d: expected a probability from 1 on and a direction up to %d", s.Probability, s.Direction, sampleEgress)
	}
	return Action{Kind: ActSample, Sample: s}, nil
}

// SPDX-License-Identifier: Apache-2.0

package flowexport

import (
	"net/netip"
	"time"

	"weft/flowtable"
)

// This file writes datagrams of sFlow version 5 (sflow.org/sflow_version_5.txt).

const (
	sflowVersion = 5
	flowSample   = 1
	countSample  = 2
	// Formats of the records in a sample.
	recordHeader       = 1
	recordGeneric      = 1
	recordSwitch       = 1001
	recordOpenFlowPort = 1004
	recordPortName     = 1005

	protocolEthernet = 1
	checksumLen      = 4 // sFlow counts the frame check sequence, which the switch does not have
	// Values of a flow sample's output interface.
	outputDropped  = 1<<30 | 256 // dropped, for an unknown reason
	outputSeveral  = 1 << 31     // plus the number of outputs
	unknownCounter = 1<<32 - 1
	agentSamples   = 0 // sub-agent ID of all datagrams
	ifTypeEthernet = 6
)

type sflow struct {
	config   *Config
	began    time.Time
	sequence uint32                    // sequence number of datagrams
	sources  map[uint32]*sampledSource // by Index of the port at which frames arrive
	polled   map[uint32]uint32         // sequence numbers of counter samples, by Index of the port
	nextPoll time.Time
	datagram []byte // the next datagram, without its header
	samples  uint32
}

// sampledSource is the state of the flow samples from one port.
type sampledSource struct{ sequence, pool, drops uint32 }

func newSFlow(c *Config, now time.Time) *sflow {
	return &sflow{config: c, began: now, sources: map[uint32]*sampledSource{}, polled: map[uint32]uint32{}, nextPoll: now.Add(c.Polling)}
}

// take adds a flow sample to the next datagram.
func (e *sflow) take(s *Sample, in, out Interface, agent netip.Addr, now time.Time, send func([]byte)) {
	source := e.sources[in.Index]
	if source == nil {
		source = new(sampledSource)
		e.sources[in.Index] = source
	}
	rate := uint32((1<<32 - 1) / uint64(max(s.Probability, 1)))
	source.sequence++
	source.pool += rate
	var b []byte
	for _, v := range []uint32{source.sequence, in.Index, rate, source.pool, source.drops, in.Index, outputOf(s, out), 2} {
		b = be.AppendUint32(b, v)
	}
	header := s.Data[:min(len(s.Data), e.config.Header)]
	raw := be.AppendUint32(nil, protocolEthernet)
	for _, v := range []int{s.Len + checksumLen, checksumLen, len(header)} {
		raw = be.AppendUint32(raw, uint32(v))
	}
	b = appendCounted(b, recordHeader, padded(append(raw, header...)))
	vid, pcp := vlanOf(&s.Key)
	b = appendCounted(b, recordSwitch, be.AppendUint32(be.AppendUint32(be.AppendUint32(be.AppendUint32(nil, vid), pcp), vid), pcp))
	e.add(flowSample, b, agent, now, send)
}

// outputOf returns the output interface of a flow sample: the index of the interface if there is one
// output, 0 if it is unknown, and special values for no output and for several outputs.
func outputOf(s *Sample, out Interface) uint32 {
	switch {
	case s.Unknown:
		return 0
	case s.Outputs == 0:
		return outputDropped
	case s.Outputs > 1:
		return outputSeveral | uint32(s.Outputs)
	}
	return out.Index
}

func vlanOf(k *flowtable.Key) (vid, pcp uint32) {
	tci := uint32(k.OuterTCI())
	return tci & flowtable.VLANID, tci & flowtable.VLANPCP >> 13
}

// poll adds a counter sample of each port if the time for it has come.
func (e *sflow) poll(list []Interface, agent netip.Addr, now time.Time, send func([]byte)) {
	if e.config.Polling == 0 || now.Before(e.nextPoll) {
		return
	}
	e.nextPoll = now.Add(e.config.Polling)
	present := map[uint32]bool{}
	for i := range list {
		p := &list[i]
		present[p.Index] = true
		e.polled[p.Index]++
		b := be.AppendUint32(be.AppendUint32(be.AppendUint32(nil, e.polled[p.Index]), p.Index), 3)
		b = appendCounted(b, recordGeneric, p.counters())
		b = appendCounted(b, recordOpenFlowPort, be.AppendUint32(be.AppendUint64(nil, p.DatapathID), p.OpenFlow))
		b = appendCounted(b, recordPortName, padded(append(be.AppendUint32(nil, uint32(len(p.Name))), p.Name...)))
		e.add(countSample, b, agent, now, send)
	}
	for index := range e.polled { // forgets ports that were deleted
		if !present[index] {
			delete(e.polled, index)
			delete(e.sources, index)
		}
	}
}

// counters returns the body of the record with the generic interface counters of a port.
func (p *Interface) counters() []byte {
	status := uint32(0)
	if p.Up {
		status = 3 // the bits of ifAdminStatus and ifOperStatus
	}
	direction := uint32(0)
	switch p.Duplex {
	case "full":
		direction = 1
	case "half":
		direction = 2
	}
	b := be.AppendUint32(be.AppendUint32(nil, p.Index), ifTypeEthernet)
	b = be.AppendUint32(be.AppendUint32(be.AppendUint64(b, uint64(p.Mbps)*1e6), direction), status)
	b = be.AppendUint64(b, p.RxBytes)
	for _, v := range []uint32{uint32(p.RxPackets), unknownCounter, unknownCounter, uint32(p.RxDrops), 0, unknownCounter} {
		b = be.AppendUint32(b, v)
	}
	b = be.AppendUint64(b, p.TxBytes)
	for _, v := range []uint32{uint32(p.TxPackets), unknownCounter, unknownCounter, uint32(p.TxDrops), 0, 0} {
		b = be.AppendUint32(b, v)
	}
	return b
}

// add adds a sample to the next datagram. If the datagram has no room for it, add first sends the
// datagram.
func (e *sflow) add(format uint32, body []byte, agent netip.Addr, now time.Time, send func([]byte)) {
	if len(e.datagram)+8+len(body) > maxMessage-64 {
		e.flush(agent, now, send)
	}
	e.datagram = appendCounted(e.datagram, format, body)
	e.samples++
}

// flush sends the datagram with the samples so far.
func (e *sflow) flush(agent netip.Addr, now time.Time, send func([]byte)) {
	if e.samples == 0 {
		return
	}
	b := be.AppendUint32(nil, sflowVersion)
	if agent.Is4() {
		b = be.AppendUint32(b, 1)
	} else {
		b = be.AppendUint32(b, 2)
	}
	b = append(b, agent.AsSlice()...)
	e.sequence++
	for _, v := range []uint32{agentSamples, e.sequence, uint32(now.Sub(e.began).Milliseconds()), e.samples} {
		b = be.AppendUint32(b, v)
	}
	send(append(b, e.datagram...))
	e.datagram, e.samples = e.datagram[:0], 0
}

// appendCounted appends the format, the length and the body of a sample or a record.
func appendCounted(b []byte, format uint32, body []byte) []byte {
	return append(be.AppendUint32(be.AppendUint32(b, format), uint32(len(body))), body...)
}

// padded fills an opaque value with zeros to a multiple of 4 bytes, as XDR (RFC 4506) requires.
func padded(b []byte) []byte { return append(b, make([]byte, (4-len(b)%4)%4)...) }

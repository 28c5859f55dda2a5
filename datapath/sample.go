// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"encoding/binary"

	"weft/flowtable"
	"weft/packet"
	"weft/port"
)

const (
	// SamplePort is the value of Capture.Port that selects sampled frames. No port has this number.
	SamplePort = 0xfff0
	// sampleIntervalNS is the shortest average time between two frames that a worker samples. sampleBurst
	// is the number of frames that it may sample at once. Frames beyond this rate are not sampled, and
	// counted as Counters.SamplesRefused.
	sampleIntervalNS = 20_000
	sampleBurst      = 1_000
	// The worker samples some frames of each port even if other ports have used up the rate.
	// sampleReserveNS is the shortest average time between two such frames of one port, and sampleReserve is
	// the number of them at once.
	sampleReserveNS = sampleIntervalNS * port.MaxPorts
	sampleReserve   = 8
)

// Sampled has the data about a sampled frame that the IPFIX and sFlow exporters in the control process need.
type Sampled struct {
	flowtable.SampleTag
	Probability uint32 // probability with which the frame was chosen, times 2^32-1
	// Domain and Point are the IPFIX observation domain and point in OpenFlow's action "sample".
	Domain, Point uint32
}

// sampledBytes is the size of a Sampled in a record: the tag, the observation and the probability.
const sampledBytes = 8 + 8 + 4

// sampleSight has those arguments of writeRecord that only a sampled frame has. It is a part of sight
// (capture.go).
type sampleSight struct {
	action      *flowtable.Action // nil: the frame is not sampled
	observation uint64
}

func (s *sampleSight) put(b []byte) {
	binary.LittleEndian.PutUint64(b, s.action.U64)
	binary.LittleEndian.PutUint64(b[8:], s.observation)
	binary.LittleEndian.PutUint32(b[16:], s.action.U32)
}

func readSampled(b []byte) Sampled {
	observation := binary.LittleEndian.Uint64(b[8:])
	return Sampled{SampleTag: flowtable.TagOf(binary.LittleEndian.Uint64(b)), Probability: binary.LittleEndian.Uint32(b[16:]),
		Domain: uint32(observation >> 32), Point: uint32(observation)}
}

// sampleRun executes the OpSample actions at the start of an action list on the live frames from index
// "first" to end-1. It returns the number of list elements that it has executed. It skips fragments of
// complete datagrams, which were sampled when they arrived.
func (c *captures) sampleRun(first, end int, actions []flowtable.Action) (count int) {
	for ; count < len(actions) && actions[count].Op == flowtable.OpSample; count++ {
		for i := first; i < end; i++ {
			if c.live>>i&1 != 0 && c.fragments.assembled>>i&1 == 0 {
				c.sample(i, &actions[count], 0)
			}
		}
	}
	return count
}

// sample executes the OpSample a on frame i: with the probability of a, it copies the frame's first bytes to
// each capture whose port is SamplePort. If the frame exceeds the rate of maySample, it only counts the
// frame. observation has the IPFIX domain and point, see flowtable.OpObserve.
func (c *captures) sample(i int, a *flowtable.Action, observation uint64) {
	if !c.sampling || a.U32 != 1<<32-1 && uint32(c.dice.Uint64()>>32) >= a.U32 {
		return
	}
	if !c.maySample(&c.batch.Frames[i]) {
		c.sh.Counters.SamplesRefused++
		return
	}
	c.sh.Counters.Samples++
	for at := range c.list {
		if t := &c.list[at]; t.Kind != CapturePort || t.Port != SamplePort {
			continue
		}
		r := c.writeRecord(sight{capture: at, frame: i, kind: CapturedOut, port: SamplePort, bounded: true, maxLen: uint32(a.U16),
			keyed: true, sample: sampleSight{a, observation}})
		if r != nil {
			r.sent(SamplePort)
		}
	}
}

// maySample takes a token for a sample: from the bucket of all ports, or else from the reserve of the
// frame's input port. It returns false if both are empty.
func (c *captures) maySample(f *packet.Frame) bool {
	p := &c.ports[f.InPort%uint32(len(c.ports))]
	return port.TakeToken(&c.sampleDue, c.now, sampleIntervalNS, sampleBurst) ||
		port.TakeToken(&p.sampledNS, c.now, sampleReserveNS, sampleReserve)
}

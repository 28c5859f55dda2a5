// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"math"
	"testing"

	"weft/flowtable"
	"weft/packet"
)

func sampleAction(snap uint16, probability uint32, tag flowtable.SampleTag) flowtable.Action {
	return flowtable.Action{Op: flowtable.OpSample, U16: snap, U32: probability, U64: tag.Word()}
}

// The record of a sampled frame has the frame as it is at the OpSample, with the action's tag. The frame's
// other actions follow. Without a capture of SamplePort nothing is recorded.
func TestSample(t *testing.T) {
	r := twoPorts(t)
	before := flowtable.SampleTag{Exporter: 7, Output: 2, Outputs: 1, Unknown: true}
	after := flowtable.SampleTag{Exporter: 8, Output: 2, Outputs: 255, Egress: true}
	r.install(1, 1, 0xa, sampleAction(64, math.MaxUint32, before), flowtable.Action{Op: flowtable.OpSetEthSrc, U64: 7},
		flowtable.Action{Op: flowtable.OpObserve, U64: 5<<32 | 6}, sampleAction(100, math.MaxUint32, after), flowtable.Action{Op: flowtable.OpOutput, U32: 2})
	r.inject(1, ethernet(0xa, 200, 0))
	r.turn()
	r.capture(0, Capture{Kind: CapturePort, Port: SamplePort})
	r.turn()
	if got := r.captures(); len(got) != 0 {
		t.Errorf("%d records without a capture", len(got))
	}
	r.inject(1, ethernet(0xa, 200, 1))
	r.turn()
	got := r.captures()
	if len(got) != 2 || got[0].Sampled == nil || got[1].Sampled == nil {
		t.Fatalf("records: %+v, want two samples", got)
	}
	if s := got[0].Sampled; s.SampleTag != before || s.Domain != 0 || s.Probability != math.MaxUint32 || len(got[0].Data) != 64 || got[0].Len != 200 || got[0].Data[11] == 7 || got[0].Key.InPort() != 1 {
		t.Errorf("on arrival: %+v of %+v", s, got[0])
	}
	if s := got[1].Sampled; s.SampleTag != after || s.Domain != 5 || s.Point != 6 || len(got[1].Data) != 100 || got[1].Data[11] != 7 || got[1].InPort != 1 {
		t.Errorf("on departure: %+v of %+v", s, got[1])
	}
	if n := len(r.tx(2).TakeAll()); n != 2 {
		t.Errorf("%d frames sent, want 2", n)
	}
}

// The share of sampled frames is about the probability of the OpSample. A few frames of a port are still
// sampled when another port's frames use up the rate.
func TestSampleRates(t *testing.T) {
	r := twoPorts(t)
	r.capture(0, Capture{Kind: CapturePort, Port: SamplePort})
	r.install(1, 1, 0xa, sampleAction(64, math.MaxUint32/4, flowtable.SampleTag{}), flowtable.Action{Op: flowtable.OpOutput, U32: 2})
	r.install(2, 1, 0xb, sampleAction(64, math.MaxUint32, flowtable.SampleTag{}))
	r.install(3, 2, 0xa, sampleAction(64, math.MaxUint32, flowtable.SampleTag{}))
	r.turn()
	r.w.fixed = r.w.clock()
	send := func(port uint32, to uint64, frames int) int {
		for range frames / packet.BatchSize {
			for range packet.BatchSize {
				r.inject(port, ethernet(to, 60, 0))
			}
			r.turn()
			if port == 1 {
				r.tx(2).TakeAll()
			}
		}
		return len(r.captures())
	}
	const frames = 32 * packet.BatchSize
	if n := send(1, 0xa, frames); n < frames/8 || n > frames/2 {
		t.Errorf("%d of %d frames are sampled, want about a quarter", n, frames)
	}
	send(1, 0xb, 2*sampleBurst)
	refused := r.sh.Counters.SamplesRefused
	if refused == 0 {
		t.Error("no sample is refused")
	}
	if n := send(2, 0xa, packet.BatchSize); n != sampleReserve {
		t.Errorf("%d of the second port's frames are sampled, want %d", n, sampleReserve)
	}
	if n := r.sh.Counters.SamplesRefused - refused; n != packet.BatchSize-sampleReserve {
		t.Errorf("%d samples of the second port are refused, want %d", n, packet.BatchSize-sampleReserve)
	}
}

// SPDX-License-Identifier: Apache-2.0

package pipeline_test

import (
	"fmt"
	"testing"

	"weft/control/limits"
	"weft/control/megaflows"
	"weft/control/pipeline/pipelinetest"
	"weft/control/workers/workertest"
	"weft/flowtable"
)

// A port that uses many masks or megaflows leaves room for another port.
func TestOnePortLeavesRoom(t *testing.T) {
	f := newRig(t)
	var flows []string
	for bits := 1; bits <= 30; bits++ {
		flows = append(flows, fmt.Sprintf("priority=%d,udp,nw_src=10.0.0.0/%d,tp_src=%d/0x%x,actions=drop", bits, bits, 1<<(bits%16), 0xffff<<(bits%16)&0xffff))
	}
	f.Add(flows...)
	f.Add("priority=100,in_port=2,udp,nw_ttl=64,actions=drop")
	w := f.Worker()
	for i := range 700 {
		k := workertest.UDPKey(1, 0, 2, 9)
		k[flowtable.WIPv4] ^= uint64(1) << (32 + i%30)
		k[flowtable.WL4] = uint64(i*2654435761) << 48
		k[flowtable.WIPv6Src] = uint64(i) // a field that no rule matches
		w.Frame(k, 100)
		f.Settle()
	}
	if own := f.Used("masks", limits.Port(1)); own > uint64(pipelinetest.Sizes.Cache.Masks/2+megaflows.NarrowMasks) {
		t.Errorf("one port has %d masks of %d", own, pipelinetest.Sizes.Cache.Masks)
	}
	if own := f.Used("megaflows", limits.Port(1)); own > uint64(pipelinetest.Sizes.Cache.Megaflows/2) {
		t.Errorf("one port has %d megaflows of %d", own, pipelinetest.Sizes.Cache.Megaflows)
	}
	before := f.Used("masks", limits.All())
	k := workertest.UDPKey(2, 0, 2, 9)
	w.Frame(k, 100)
	f.Settle()
	w.On(func() {
		if _, ok := w.Lookup(&k); !ok {
			t.Errorf("another port's flow finds no room behind %d masks", before)
		}
		if w.Lost > 0 {
			t.Errorf("%d frames missed again", w.Lost)
		}
	})
	if n := len(f.Counts()); n != 31 {
		t.Errorf("%d flows", n)
	}
	f.Want("udp,in_port=2,nw_ttl=64", "1/100")
}

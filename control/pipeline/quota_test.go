// SPDX-License-Identifier: Apache-2.0

package pipeline_test

import (
	"fmt"
	"testing"

	"weft/control/limits"
	"weft/control/megaflows"
	"weft/control/pipeline"
	"weft/control/pipeline/pipelinetest"
	"weft/control/workers/workertest"
	"weft/flowtable"
	"weft/openflow/xlate"
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

// A port's frame is dropped because the port's quota of Geneve options or of recirc_ids is used up.
// Such frames are forwarded once there is room again, even if their sender never pauses.
func TestRefusedFramesAreTriedAgain(t *testing.T) {
	for _, c := range []struct {
		name, flow string
		options    uint64 // hash of the frame's Geneve options; 0: none
		fill       func(f *rig, n uint64) (ok bool)
	}{
		{"options", "table=0,actions=output:2", 1, func(f *rig, n uint64) bool { return f.P.Options().Put(1, n+2, nil) }},
		{"recirc_ids", "table=0,ip,actions=ct(table=1)", 0, func(f *rig, n uint64) (ok bool) {
			_, ok = f.P.Recircs().Freeze(1, &xlate.Frozen{State: [10]uint64{n + 1}})
			return ok
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := newRig(t)
			f.VXLANPorts(2)
			tx := f.Configuration.Begin()
			f.Infos[0].Encap = xlate.EncapGeneve
			f.SetView(tx)
			f.P.PortsChanged(tx)
			tx.Commit()
			f.Add(c.flow)
			key := workertest.UDPKey(1, 1, 2, 9)
			key[flowtable.WTunOpts] = c.options
			actions := func() (op flowtable.Op) {
				f.Worker().Frame(key, 100)
				f.Settle()
				f.Worker().On(func() {
					if slot, ok := f.Worker().Lookup(&key); ok {
						_, _, list, _ := f.Worker().Shared.Cache.Read(slot)
						op = list[0].Op
					}
				})
				return op
			}
			tx = f.Configuration.Begin() // no sweep makes room meanwhile
			for n := uint64(0); c.fill(f, n); n++ {
			}
			op := actions()
			tx.Commit()
			if op != flowtable.OpDrop {
				t.Fatalf("with a full quota: operation %v, want a drop", op)
			}
			f.P.Options().Collect(func(uint64) bool { return false })
			f.P.Options().Collect(func(uint64) bool { return false })
			f.P.Recircs().Collect(func(uint32) bool { return false })
			f.P.Recircs().Collect(func(uint32) bool { return false })
			f.P.Mu().Lock()
			for _, m := range f.P.Index().List() {
				m.MadeNS -= uint64(pipeline.AskAgain) + 1
			}
			f.P.Mu().Unlock()
			f.P.Sweep()
			if op := actions(); op == flowtable.OpDrop {
				t.Error("with room again, the drop stays")
			}
		})
	}
}

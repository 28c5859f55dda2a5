// SPDX-License-Identifier: Apache-2.0

package pipeline_test

import (
	"fmt"
	"strings"
	"testing"

	"weft/control/pipeline/pipelinetest"
	"weft/datapath"
	"weft/flowtable"
)

const missesTogether = 16

// BenchmarkMiss measures the time that control takes for a miss, with a new megaflow
// and with full caches. Each connection has its own rule.
func BenchmarkMiss(b *testing.B) {
	sizes := pipelinetest.Sizes
	defer func() { pipelinetest.Sizes = sizes }()
	pipelinetest.Sizes = datapath.DefaultSizes
	const rules = 100_000
	var text strings.Builder
	for i := range rules {
		fmt.Fprintf(&text, "in_port=1,udp,nw_src=10.0.%d.%d,nw_dst=10.1.0.2,tp_src=%d,tp_dst=9,actions=2\n", i>>16, i>>8&255, i&0xffff)
	}
	for _, room := range []int{datapath.DefaultSizes.Cache.Megaflows, 1} {
		name := "installed"
		if room == 1 {
			name = "executed"
		}
		b.Run(name, func(b *testing.B) {
			pipelinetest.Sizes.Cache.Megaflows = room
			f := newRig(b)
			f.VXLANPorts(2)
			f.Add(text.String())
			ups := make([]datapath.Upcall, missesTogether)
			b.ResetTimer()
			for i := range b.N {
				n := uint64(i % rules)
				if i%rules == 0 && i > 0 {
					b.StopTimer()
					tx := f.Configuration.Begin()
					f.P.Evict(tx, f.P.Index().List())
					tx.Commit()
					b.StartTimer()
				}
				up := &ups[i%missesTogether]
				*up = datapath.Upcall{Op: datapath.UpMiss, Arg: uint32(i) % 64}
				k := &up.Key
				k.SetInPort(1)
				k[flowtable.WEthDst] = 0x0800
				k[flowtable.WIP] = 17<<56 | 64<<40
				k[flowtable.WIPv4] = (10<<24|n>>16<<8|n>>8&255)<<32 | 10<<24 | 1<<16 | 2
				k[flowtable.WL4] = n&0xffff<<48 | 9<<32
				if i%missesTogether == missesTogether-1 {
					f.P.Answer(f.P.Workers(), ups)
				}
			}
			b.StopTimer()
			f.End()
		})
	}
}

// SPDX-License-Identifier: Apache-2.0

package pipeline_test

import (
	"fmt"
	"testing"

	"weft/openflow"
)

// BenchmarkApplyEach adds flows one by one, as ovs-ofctl add-flows does without bundles.
func BenchmarkApplyEach(b *testing.B) {
	f := newRig(b)
	f.VXLANPorts(2)
	mods := make([]openflow.FlowMod, b.N)
	for i := range mods {
		var err error
		if mods[i], err = openflow.ParseFlowMod(fmt.Sprintf("tcp,nw_src=10.%d.%d.%d,tp_dst=80,actions=2", i>>16&255, i>>8&255, i&255), openflow.Add, nil); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportAllocs()
	b.ResetTimer()
	for i := range mods {
		tx := f.Configuration.Begin()
		f.P.ApplyEach(tx, mods[i:i+1])
		tx.Commit()
	}
}

// SPDX-License-Identifier: Apache-2.0

package pipeline_test

import (
	"slices"
	"testing"

	"weft/control/pipeline"
	"weft/control/workers/workertest"
	"weft/flowtable"
)

// If every frame of one port misses, the misses of another port wait for at most one
// batch.
func TestPortsTakeTurns(t *testing.T) {
	f := newRig(t)
	f.Add("udp,tp_src=0/0xffff,actions=drop")
	w := f.Worker()
	flood := func(i int) flowtable.Key {
		k := workertest.UDPKey(1, 0, 2, 9)
		k[flowtable.WL4] = uint64(i+1) << 48
		return k
	}
	f.P.Mu().Lock() // no miss is answered while this is held
	for i := range 200 {
		w.Frame(flood(i), 100)
	}
	w.Frame(workertest.UDPKey(2, 1, 2, 9), 100)
	var slot uint32
	w.On(func() { slot = w.Held })
	f.P.Mu().Unlock()
	f.Settle()
	w.On(func() {
		if at := slices.Index(w.Retries, slot); at < 0 || at > 2*pipeline.MissBatch {
			t.Errorf("the other port's frame is answered after %d of %d", at, len(w.Retries))
		}
	})
}

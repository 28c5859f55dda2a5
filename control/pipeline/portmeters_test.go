// SPDX-License-Identifier: Apache-2.0

package pipeline_test

import (
	"maps"
	"testing"

	"weft/internal/waitfor"
)

// The workers have the weights of ports after each change, after an engine's death, and under the next
// control process.
func TestWeightsReachTheWorkers(t *testing.T) {
	f := newRig(t)
	set := func(weights map[uint32]uint32) {
		tx := f.Configuration.Begin()
		f.P.SetPortWeights(tx, weights)
		tx.Commit()
	}
	want := func(moment string, weights map[uint32]uint32) {
		t.Helper()
		waitfor.True(t, moment+": the worker has the weights", func() (equal bool) {
			w := f.Worker()
			w.On(func() { equal = maps.Equal(w.Weights, weights) })
			return equal
		})
	}
	set(map[uint32]uint32{1: 3, 2: 5})
	want("at first", map[uint32]uint32{1: 3, 2: 5})
	set(map[uint32]uint32{2: 4, 3: 2})
	want("after a change", map[uint32]uint32{2: 4, 3: 2})
	f.WithoutEngine(func() { set(map[uint32]uint32{2: 7, 3: 2}) })
	want("with the next engine", map[uint32]uint32{2: 7, 3: 2})
	f.Die()
	f.Begin()
	want("under a control process without weights", nil)
	set(map[uint32]uint32{2: 9})
	want("after its change", map[uint32]uint32{2: 9})
}

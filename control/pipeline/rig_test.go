// SPDX-License-Identifier: Apache-2.0

package pipeline_test

import (
	"testing"
	"time"

	"weft/control/pipeline/pipelinetest"
)

// rig is a pipelinetest.Rig with helpers for some tests of this package.
type rig struct{ *pipelinetest.Rig }

func newRig(t testing.TB) *rig { return &rig{pipelinetest.New(t)} }

// age moves the time of each megaflow's last frame back by the duration.
func (f *rig) age(duration time.Duration) {
	f.P.Mu().Lock()
	defer f.P.Mu().Unlock()
	for _, m := range f.P.Index().List() {
		f.P.Pull(m)
		m.UsedNS -= uint64(duration)
	}
}

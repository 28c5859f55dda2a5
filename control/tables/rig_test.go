// SPDX-License-Identifier: Apache-2.0

package tables

import (
	"testing"

	"weft/control/pipeline/pipelinetest"
)

// rig is a pipeline with a worker, and the requests about its tables.
type rig struct{ *pipelinetest.Rig }

func newRig(t *testing.T) *rig { return &rig{pipelinetest.New(t)} }

// tables returns the tables of the present control process.
func (f *rig) tables() *Tables { return New(&f.Configuration, f.P.First()) }

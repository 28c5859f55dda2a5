// SPDX-License-Identifier: Apache-2.0

package pipeline_test

import (
	"testing"

	"weft/control/pipeline/pipelinetest"
)

// rig is a pipelinetest.Rig with helpers for some tests of this package.
type rig struct{ *pipelinetest.Rig }

func newRig(t testing.TB) *rig { return &rig{pipelinetest.New(t)} }

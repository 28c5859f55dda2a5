// SPDX-License-Identifier: Apache-2.0

package openflow

import (
	"strings"
	"testing"
)

func pipelineOf(t *testing.T, flows ...string) *Pipeline {
	t.Helper()
	p := NewPipeline(Limits{})
	mods, err := ParseFlowMods(strings.Join(flows, "\n"), Add, newNames())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.Apply(mods, 0); err != nil {
		t.Fatal(err)
	}
	return p
}

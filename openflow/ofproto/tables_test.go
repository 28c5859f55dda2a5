// SPDX-License-Identifier: Apache-2.0

package ofproto

import (
	"strings"
	"testing"

	"weft/openflow"
)

func pipelineOf(t *testing.T, flows ...string) *Tables {
	t.Helper()
	p := NewTables(Limits{})
	mods, err := openflow.ParseFlowMods(strings.Join(flows, "\n"), openflow.Add, portNames())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.Apply(mods, 0); err != nil {
		t.Fatal(err)
	}
	return p
}

// SPDX-License-Identifier: Apache-2.0

package control

import (
	"compress/gzip"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"weft/api"
	"weft/control/pipeline"
)

// unpack decompresses a state file of testdata into the state directory.
func (f *fakes) unpack(name string) {
	f.t.Helper()
	packed, err := os.Open(filepath.Join("testdata", name))
	if err != nil {
		f.t.Fatal(err)
	}
	defer packed.Close()
	r, err := gzip.NewReader(packed)
	if err != nil {
		f.t.Fatal(err)
	}
	state, err := os.OpenFile(filepath.Join(f.config.StateDir, "state.db"), os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		f.t.Fatal(err)
	}
	defer state.Close()
	if _, err := io.Copy(state, r); err != nil {
		f.t.Fatal(err)
	}
}

// State files of earlier versions load completely. The first version had no groups, meters and settings
// of tables, the second no bridges. Each version's own store has written its file. A second start loads
// the state that the first start has saved.
func TestEarlierStateFiles(t *testing.T) {
	for file, tables := range map[string]int{"state-without-tables.db.gz": 0, "state-without-bridges.db.gz": 1} {
		t.Run(file, func(t *testing.T) {
			f := newFakes(t)
			f.end()
			f.unpack(file)
			for range 2 {
				f.begin()
				list, err := f.d.ports.List("")
				if err != nil || len(list) != 2 || list[0].Name != "vm1" || list[1].Number != 2 || list[1].Options["vni"] != "100" {
					t.Fatalf("ports %+v, %v", list, err)
				}
				var flows []string
				all, err := f.d.bridges.Megaflows().DumpFlows("", pipeline.ByName)
				for _, flow := range all {
					flows = append(flows, flow.Match+" "+flow.Actions)
				}
				if err != nil || !slices.Equal(flows, []string{" NORMAL", "ip output:overlay"}) {
					t.Errorf("flows %q, %v", flows, err)
				}
				groups, err1 := f.d.bridges.Megaflows().ListGroups("", pipeline.ByName)
				meters, err2 := f.d.bridges.Megaflows().ListMeters("")
				if err1 != nil || err2 != nil || len(groups) != tables || len(meters) != tables {
					t.Errorf("%d groups and %d meters, want %d: %v, %v", len(groups), len(meters), tables, err1, err2)
				}
				if _, err := f.d.bridges.Megaflows().ChangeFlows(api.ChangeFlows{Op: "add", Text: "priority=5,ip,actions=overlay"}); err != nil {
					t.Error(err)
				}
				f.end()
			}
		})
	}
}

// A control process that cannot start returns the reason and leaves the engine alone. The former version
// then takes the engine over again.
func TestBackAfterAFailedStart(t *testing.T) {
	f := newFakes(t)
	f.add("udp,tp_dst=1,actions=drop")
	old := f.last()
	f.die()
	path := filepath.Join(f.config.StateDir, "state.db")
	state, err := os.ReadFile(path)
	if err == nil {
		err = os.WriteFile(path, []byte(strings.Repeat("another format", 1000)), 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	if _, err := newDaemon(f.config); err == nil || !strings.Contains(err.Error(), "state.db") || strings.Contains(err.Error(), "\n") {
		t.Errorf("a start with a state file of another format: %v", err)
	}
	select {
	case <-old.Gone():
		t.Error("the engine has ended")
	default:
	}
	if err := os.WriteFile(path, state, 0o600); err != nil {
		t.Fatal(err)
	}
	f.begin()
	if f.last() != old || f.d.pipeline.Counts().Flows != 1 || f.d.engines.PID() != old.PID() {
		t.Errorf("engine %d instead of %d, %d flows", f.d.engines.PID(), old.PID(), f.d.pipeline.Counts().Flows)
	}
}

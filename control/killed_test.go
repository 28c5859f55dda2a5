// SPDX-License-Identifier: Apache-2.0

package control

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"weft/api"
	"weft/control/change"
	"weft/control/store"
	"weft/openflow"
	"weft/openflow/ofproto"
)

// killedChanges are the changes during which TestKilledInCommit kills control. Before each, the switch
// has the bridge br1 with four ports, flows, a group, a meter and a setting.
var killedChanges = map[string]func(d *Daemon) error{
	"apply":  func(d *Daemon) error { return d.rest.ChangeAll(appliedFile(3)) },
	"del-br": func(d *Daemon) error { return d.bridges.Delete("br1") },
	"bundle": func(d *Daemon) error {
		group, err := openflow.ParseGroupMod("group_id=2,type=all,bucket=output:1", openflow.GroupAdd, nil)
		if err != nil {
			return err
		}
		gone, err := openflow.ParseFlowMod("in_port=2", openflow.Delete, nil)
		if err != nil {
			return err
		}
		items := []ofproto.BundleItem{{Group: &group}, {Flow: &gone}}
		for i := range 20 {
			mod, err := openflow.ParseFlowMod(fmt.Sprintf("priority=%d,actions=group:2", i+1), openflow.Add, nil)
			if err != nil {
				return err
			}
			items = append(items, ofproto.BundleItem{Flow: &mod})
		}
		return d.configuration.Update(func(tx *change.Tx) error {
			_, err := d.bridges.Named("br1").Pipeline.ApplyBundle(tx, items)
			return err
		})
	},
}

// appliedFile returns the changes that weft apply makes for a file. The file has another bridge with
// some ports, a group and flows. It lacks the port p0 and the group of br1.
func appliedFile(ports int) []api.Change {
	list := []api.Change{{AddBridge: &api.AddBridge{Name: "br2", Bare: true}}, {Port: "p1", ModPort: &api.ModPort{Options: []string{"tag=7"}}}}
	flows := ""
	for i := range ports {
		list = append(list, api.Change{AddPort: &api.AddPort{Name: fmt.Sprint("q", i), Options: []string{"type=patch", fmt.Sprint("peer=q", i^1), "bridge=br2"}}})
		flows += fmt.Sprintf("in_port=q%d,actions=group:5\n", i)
	}
	return append(list,
		api.Change{Bridge: "br2", Groups: &api.ChangeTable{Op: "add", Text: "group_id=5,type=all,bucket=output:q0"}},
		api.Change{Bridge: "br2", Table: &api.ModTable{Table: 4, Settings: []string{"limit:9"}}},
		api.Change{Bridge: "br2", Flows: flows},
		api.Change{Bridge: "br1", Flows: "delete_strict in_port=p0\npriority=7,actions=drop\n"},
		api.Change{Bridge: "br1", Groups: &api.ChangeTable{Op: "delete", Text: "group_id=1"}},
		api.Change{DelPort: "p0"})
}

// killedSwitch makes the state that the switch has before each of killedChanges.
func killedSwitch(d *Daemon) error {
	if _, err := d.bridges.Add(api.AddBridge{Name: "br1", Bare: true}); err != nil {
		return err
	}
	for i := range 4 {
		if _, err := d.ports.Add(fmt.Sprint("p", i), []string{"type=patch", fmt.Sprint("peer=p", i^1), "bridge=br1"}); err != nil {
			return err
		}
	}
	tables := d.bridges.Named("br1").Tables
	_, groups := tables.ChangeGroups(api.ChangeTable{Op: "add", Text: "group_id=1,type=all,bucket=output:p1"})
	_, meters := tables.ChangeMeters(api.ChangeTable{Op: "add", Text: "meter=1,kbps,band=type=drop,rate=1000"})
	_, flows := tables.ChangeFlows(api.ChangeFlows{Op: "add", File: true, Text: "in_port=p0,actions=group:1\nin_port=p1,actions=meter:1,output:p0\n"})
	return errors.Join(groups, meters, flows, tables.ModTable(api.ModTable{Table: 3, Settings: []string{"limit:7"}}))
}

// killVariable is the environment variable that tells the test binary to make a change of killedChanges,
// and to kill itself before a stage of its commit. Its value is "STAGE CHANGE DIRECTORY".
const killVariable = "WEFT_TEST_KILL_AT"

// If control is killed at any stage of a commit, the saved state is that before the change or that after
// it. The killed process is this test binary, with a real state file.
func TestKilledInCommit(t *testing.T) {
	if order := os.Getenv(killVariable); order != "" {
		killAt(t, order)
		return
	}
	f := newFakes(t)
	if err := killedSwitch(f.d); err != nil {
		t.Fatal(err)
	}
	for name, apply := range killedChanges {
		dirs := map[change.Stage]string{}
		before, cut := f.stateIn(f.copyState()), 0
		for stage := range change.Stages {
			dirs[stage] = f.copyState()
		}
		if err := apply(f.d); err != nil {
			t.Fatal(name, err)
		}
		after := f.stateIn(f.copyState())
		for stage, dir := range dirs {
			killed := f.runKilled(stage, name, dir)
			want, word := before, "before"
			if stage > change.Save || !killed {
				want, word = after, "after"
			}
			if got := f.stateIn(dir); !reflect.DeepEqual(got, want) {
				t.Errorf("%s, killed at stage %d: %+v, want as %s the change", name, stage, got, word)
			}
			if killed {
				cut++
			}
		}
		if cut < 3 {
			t.Errorf("%s was killed at %d stages only", name, cut)
		}
		f.end()
		f.config.StateDir = dirs[change.Walk]
		f.begin()
		if got := f.stateIn(f.copyState()); !reflect.DeepEqual(got, before) {
			t.Errorf("%s, after a restart: %+v, want as before", name, got)
		}
	}
}

// stateIn loads the saved state in a directory.
func (f *fakes) stateIn(dir string) store.State {
	f.t.Helper()
	s, err := store.Open(dir)
	if err != nil {
		f.t.Fatal(err)
	}
	defer s.Close()
	state, err := s.Load()
	if err != nil {
		f.t.Fatal(err)
	}
	return state
}

// runKilled makes a change in another process, which kills itself at a stage. It returns false if the
// commit has nothing to do at that stage, so that the process ends by itself.
func (f *fakes) runKilled(stage change.Stage, name, dir string) (killed bool) {
	f.t.Helper()
	c := exec.Command(os.Args[0], "-test.run=^TestKilledInCommit$", "-test.count=1")
	c.Env = append(os.Environ(), fmt.Sprintf("%s=%d %s %s", killVariable, stage, name, dir))
	out, err := c.CombinedOutput()
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.Sys().(syscall.WaitStatus).Signal() == syscall.SIGKILL {
		return true
	}
	if err != nil {
		f.t.Fatalf("%s, stage %d: %v\n%s", name, stage, err, out)
	}
	return false
}

// killAt runs in the process that kills itself. order is the value of killVariable.
func killAt(t *testing.T, order string) {
	word, rest, _ := strings.Cut(order, " ")
	name, dir, _ := strings.Cut(rest, " ")
	stage, err := strconv.Atoi(word)
	if err != nil {
		t.Fatal(err)
	}
	f := &fakes{t: t, config: Config{
		Socket: filepath.Join(dir, "s"), StateDir: dir, Exe: "none", Workers: 1, Log: slog.New(slog.DiscardHandler), sizes: testSizes,
	}}
	f.launcher = &fakeLauncher{f: f}
	f.config.launcher = f.launcher
	f.begin()
	f.d.configuration.View(func(*change.Tx) {
		f.d.configuration.Observe = func(s change.Stage) {
			if int(s) == stage {
				_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
				select {} // wait for the signal, which ends all threads
			}
		}
	})
	if err := killedChanges[name](f.d); err != nil {
		t.Fatal(err)
	}
	f.d.configuration.View(func(*change.Tx) { f.d.configuration.Observe = nil })
	f.end()
	for _, e := range f.engines {
		_ = e.Kill()
	}
}

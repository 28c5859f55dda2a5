// SPDX-License-Identifier: Apache-2.0

package control

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"weft/api"
	"weft/control/limits"
	"weft/internal/waitfor"
)

// A bridge has its own socket, flows and ports. It survives a restart, and its deletion removes all of
// them.
func TestAddAndDeleteBridges(t *testing.T) {
	f := newFakes(t)
	f.config.OpenFlow.Socket = filepath.Join(filepath.Dir(f.config.Socket), "weft.mgmt")
	f.end()
	f.begin()
	if _, err := f.d.bridges.Add(api.AddBridge{Name: "br1", DatapathID: "77", FailMode: "standalone"}); err != nil {
		t.Fatal(err)
	}
	if _, err := f.d.bridges.Add(api.AddBridge{Name: "br1", MayExist: true}); err != nil {
		t.Error(err)
	}
	for want, add := range map[string]api.AddBridge{
		"br1: the bridge exists":    {Name: "br1"},
		"bridge \"1\"":              {Name: "1"},
		"name too long":             {Name: "a234567890b23456"},
		"fail mode open":            {Name: "br2", FailMode: "open"},
		"datapath id xyz":           {Name: "br2", DatapathID: "xyz"},
		"controller: udp:192.0.2.1": {Name: "br2", Controllers: []string{"udp:192.0.2.1"}},
	} {
		if _, err := f.d.bridges.Add(add); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, want %s", add, err, want)
		}
	}
	add := func(name string, words ...string) {
		t.Helper()
		if _, err := f.d.ports.Add(name, words); err != nil {
			t.Fatal(err)
		}
	}
	add("p1", "type=patch", "peer=p2")
	add("p2", "type=patch", "peer=p1", "bridge=br1")
	if _, err := f.d.ports.Add("p3", []string{"type=patch", "peer=p1", "bridge=br9"}); err == nil || !strings.Contains(err.Error(), "bridge=br9: no such bridge") {
		t.Errorf("a port of an unknown bridge: %v", err)
	}
	if _, err := f.d.bridges.Named("br1").Tables.ChangeFlows(api.ChangeFlows{Op: "add", Text: "in_port=p2,actions=drop"}); err != nil {
		t.Error(err)
	}
	modify := func(bridge string, mod api.ModBridge) error {
		_, err := f.d.bridges.Modify(f.d.bridges.Named(bridge), mod)
		return err
	}
	targets := []string{"tcp:127.0.0.1:1"}
	for want, mod := range map[string]api.ModBridge{
		"fail mode open":            {FailMode: "open"},
		"controller: udp:192.0.2.1": {Controllers: &[]string{"udp:192.0.2.1"}},
		"--openflow-certs":          {Controllers: &[]string{"ssl:127.0.0.1:1"}},
	} {
		if err := modify("br1", mod); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, want %s", mod, err, want)
		}
	}
	// A standalone bridge adds a flow of its own, and deletes it when it has controllers.
	hasFlows := func(n int) {
		t.Helper()
		waitfor.True(t, fmt.Sprintf("br1 has %d flows", n), func() bool { return f.d.bridges.Named("br1").Pipeline.Flows() == n })
	}
	hasFlows(2)
	if err := errors.Join(modify("br1", api.ModBridge{Controllers: &targets}), modify("", api.ModBridge{Controllers: &targets, FailMode: api.FailStandalone})); err != nil {
		t.Error(err)
	}
	hasFlows(1)
	f.end()
	f.begin()
	if b := f.d.bridges.Describe(f.d.bridges.Named("")); b.FailMode != api.FailStandalone || !slices.Equal(b.Controllers, targets) || b.Configured {
		t.Errorf("the first bridge after a restart: %+v", b)
	}
	if err := modify("", api.ModBridge{Controllers: &[]string{}, FailMode: api.FailSecure}); err != nil {
		t.Error(err)
	}
	f.config.OpenFlow.Controllers = targets
	f.end()
	f.begin()
	if err := modify("", api.ModBridge{Controllers: &targets}); err == nil || !strings.Contains(err.Error(), "weftd's configuration has its controllers") {
		t.Errorf("a first bridge with controllers in weftd's configuration: %v", err)
	}
	list := f.d.bridges.List()
	socket := filepath.Join(filepath.Dir(f.config.Socket), "br1.mgmt")
	if len(list) != 1 || list[0].Name != "br1" || list[0].DatapathID != "0000000000000077" || list[0].FailMode != "standalone" || !slices.Equal(list[0].Controllers, targets) ||
		list[0].Ports != 1 || list[0].Flows != 1 || list[0].OpenFlowSocket != socket {
		t.Errorf("after a restart: %+v", list)
	}
	seen := map[string]map[limits.Holder]bool{}
	for _, r := range f.d.limits.Rows() {
		if seen[r.Name] == nil {
			seen[r.Name] = map[limits.Holder]bool{}
		}
		if seen[r.Name][r.Holder] {
			t.Errorf("two rows %+v", r)
		}
		seen[r.Name][r.Holder] = true
	}
	if p, err := f.d.ports.Modify("p1", []string{"peer=p9"}); err != nil || p.State != "down" || p.Detail != "peer p9 does not exist" {
		t.Errorf("another peer: %+v, %v", p, err)
	}
	if err := f.d.bridges.Delete("br1"); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(socket); !os.IsNotExist(err) || f.d.ports.Exists("p2") || f.d.pipeline.Counts().Flows != 0 {
		t.Errorf("del-br leaves the socket (%v), the port %v or %d flows", err, f.d.ports.Exists("p2"), f.d.pipeline.Counts().Flows)
	}
	if err := f.d.bridges.Delete("br1"); err == nil || !strings.Contains(err.Error(), "no such bridge") {
		t.Errorf("again: %v", err)
	}
}

// weftd refuses to start if --name is the name of a bridge that add-br has added.
func TestNameOfAnotherBridge(t *testing.T) {
	f := newFakes(t)
	if _, err := f.d.bridges.Add(api.AddBridge{Name: "br1"}); err != nil {
		t.Fatal(err)
	}
	f.end()
	f.config.Name = "br1"
	d, err := newDaemon(f.config)
	if err != nil {
		t.Fatal(err)
	}
	if err := d.begin(t.Context()); err == nil || !strings.Contains(err.Error(), "name br1: a bridge of add-br has this name") {
		t.Errorf("start: %v", err)
	}
	d.end()
}

// A bridge that cannot be deleted, because the disk is full, stays with its ports and
// connections.
func TestBridgeStaysOnFullDisk(t *testing.T) {
	f := newFakes(t)
	f.config.OpenFlow.Socket = filepath.Join(filepath.Dir(f.config.Socket), "weft.mgmt")
	f.end()
	f.begin()
	for _, name := range []string{"br1", "empty"} {
		if _, err := f.d.bridges.Add(api.AddBridge{Name: name}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := f.d.ports.Add("p1", []string{"type=patch", "peer=p2", "bridge=br1"}); err != nil {
		t.Fatal(err)
	}
	if err := f.d.store.Close(); err != nil {
		t.Fatal(err)
	}
	for name, ports := range map[string]int{"br1": 1, "empty": 0} {
		if err := f.d.bridges.Delete(name); err == nil {
			t.Fatalf("del-br %s without a state file succeeds", name)
		}
		b := f.d.bridges.Named(name)
		if b == nil {
			t.Fatalf("the bridge %s is gone", name)
		}
		c, err := net.Dial("unix", f.d.bridges.Describe(b).OpenFlowSocket)
		if err != nil {
			t.Fatal(err)
		}
		c.Close()
		if n := f.d.bridges.Describe(b).Ports; n != ports {
			t.Errorf("%s: %d ports, want %d", name, n, ports)
		}
	}
}

// A user who changes the flows of an empty bridge gets a note, if all ports belong to the first bridge,
// which has no name.
func TestNoteOfAnEmptyBridge(t *testing.T) {
	f := newFakes(t)
	note := func() string { return f.d.bridges.NoteEmpty(f.d.bridges.Named("br1")) }
	if _, err := f.d.bridges.Add(api.AddBridge{Name: "br1"}); err != nil {
		t.Fatal(err)
	}
	if got := f.d.bridges.NoteEmpty(f.d.bridges.Named("")); got != "" {
		t.Errorf("the first bridge: %q", got)
	}
	if _, err := f.d.ports.Add("p1", []string{"type=patch", "peer=p2"}); err != nil {
		t.Fatal(err)
	}
	if got := note(); !strings.HasPrefix(got, "bridge br1 has no port") {
		t.Errorf("without a port: %q", got)
	}
	if _, err := f.d.ports.Add("p2", []string{"type=patch", "peer=p1", "bridge=br1"}); err != nil {
		t.Fatal(err)
	}
	if got := note(); got != "" {
		t.Errorf("with a port: %q", got)
	}
}

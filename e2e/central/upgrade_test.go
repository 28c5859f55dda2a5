// SPDX-License-Identifier: Apache-2.0

package central

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"weft/e2e/lab"
)

// laterVersion is the version of the programs that buildLater builds.
const laterVersion = "later-than-this"

// laterEdits has the changes that make the later version out of the source, besides the
// new file testdata/later.go in package wire.
var laterEdits = []struct{ file, old, new string }{
	{"central/hub/codec.go", "return b.buffers(), nil", "return wire.LaterBatch(b.buffers())"},
	{"central/hub/codec.go", "import (", "import (\n\t\"weft/central/wire\""},
	{"central/store/keys.go", ".Marshal(m)", ".Marshal(wire.Later(m))"},
	{"control/agent/disk.go", ".Marshal(m)", ".Marshal(wire.Later(m))"},
	{"central/wire/central_grpc.pb.go", "GenericClientStream[FromHost, ToHost]{ClientStream: stream}",
		"GenericClientStream[FromHost, ToHost]{ClientStream: laterStream{stream}}"},
}

// buildLater builds weftd and weft-central of a simulated later version into a
// directory. They differ from this version by laterEdits and the file testdata/later.go.
// The function wait waits for the end of the build and returns the directory.
func buildLater(t *testing.T) (wait func() string) {
	t.Helper()
	root, err := lab.Root()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	replaced := map[string]string{filepath.Join(root, "central/wire/later.go"): filepath.Join(root, "e2e/central/testdata/later.go")}
	edited := map[string]string{}
	for _, e := range laterEdits {
		if edited[e.file] == "" {
			text, err := os.ReadFile(filepath.Join(root, e.file))
			if err != nil {
				t.Fatal(err)
			}
			edited[e.file] = string(text)
		}
		if n := strings.Count(edited[e.file], e.old); n != 1 {
			t.Fatalf("%s has %q %d times, expected once: adapt laterEdits to the changed source", e.file, e.old, n)
		}
		edited[e.file] = strings.Replace(edited[e.file], e.old, e.new, 1)
	}
	for file, text := range edited {
		name := filepath.Join(dir, strings.ReplaceAll(file, "/", "-"))
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		replaced[filepath.Join(root, file)] = name
	}
	text, err := json.Marshal(map[string]any{"Replace": replaced})
	if err != nil {
		t.Fatal(err)
	}
	overlay := filepath.Join(dir, "overlay.json")
	if err := os.WriteFile(overlay, text, 0o600); err != nil {
		t.Fatal(err)
	}
	programs := filepath.Join(dir, "bin")
	done := make(chan error, 1)
	go func() {
		done <- lab.GoBuild(programs, "-overlay", overlay, "-ldflags", "-X weft/internal/buildinfo.version="+laterVersion, "./cmd/weftd", "./cmd/weft-central")
	}()
	return func() string {
		t.Helper()
		if err := <-done; err != nil {
			t.Fatalf("the later version: %v", err)
		}
		return programs
	}
}

// upgraded upgrades two centrals and two hosts to a later version, one by one. After each
// upgrade, changes take effect everywhere. No ping between other hosts is lost. At their
// next start, in the step centralsOff, the third central and host h1 get the later
// version, and the first central returns to this version.
func (s *site) upgraded() {
	steady := s.steady("b1", "b3", 60)
	s.upgradeCentral(0)
	s.upgradeHost(2)
	s.upgradeCentral(1)
	s.bindsBoth()
	s.upgradeHost(4)
	steady()
	s.laterFields()
	s.Centrals[0].Programs, s.Centrals[2].Programs = "", s.later
	s.host(1).Programs = s.later
}

// upgradeCentral stops a central, which may be etcd's leader, and starts its later version.
func (s *site) upgradeCentral(i int) {
	s.t.Helper()
	c := s.Centrals[i]
	c.Stop()
	c.Programs = s.later
	c.Run()
	s.threeCentrals()
	s.changesArrive(fmt.Sprint("mtu=", 1400+i))
}

// upgradeHost starts the later version of a host's weftd, which replaces the engine.
func (s *site) upgradeHost(i int) {
	s.t.Helper()
	d := s.host(i)
	d.Terminate()
	d.Programs = s.later
	d.Start()
	s.changesArrive(fmt.Sprint("mtu=", 1410+i))
}

// changesArrive changes a setting of network blue through the central that is upgraded
// last. All hosts apply it. Guests reach each other in a network whose ports the hub sends
// to all its hosts, and in a large network, in which hosts ask for addresses.
func (s *site) changesArrive(word string) {
	s.t.Helper()
	if out, err := s.TryAt(s.Centrals[2].Address, "net", "set", "blue", word); err != nil {
		s.t.Fatalf("net set: %v\n%s", err, out)
	}
	s.expects("sync --wait=hosts", "4 hosts have applied it")
	s.reach(s.guests["b1"], s.guests["b4"])
	s.reach(s.guests["g2"], s.guests["g1"])
}

// bindsBoth adds a port to a host of each version. Both ports are bound, and hosts of both
// versions report that they have applied this.
func (s *site) bindsBoth() {
	s.t.Helper()
	s.expects("host list --json", laterVersion)
	names := map[string]*lab.Daemon{"u2": s.host(2), "u3": s.host(3)}
	for name, host := range names {
		s.Weft("port", "add", name, "net=blue")
		host.Weft("add-port", name, "type=tap", "dev="+name)
	}
	for name := range names {
		s.expects("port why "+name, "bound: on h"+name[1:])
	}
	s.Weft("sync", "--wait=hosts") // the hosts report now
	for name, host := range names {
		s.expects("port why "+name, "on 4 of 4 hosts", "missing: nothing")
		host.Weft("del-port", name)
		s.Weft("port", "del", name)
	}
}

// laterFields fails unless the store has fields of the later version. weft central save
// writes a snapshot of the store.
func (s *site) laterFields() {
	s.t.Helper()
	file := filepath.Join(s.lab.Dir, "later.backup")
	s.Weft("central", "save", file)
	data, err := os.ReadFile(file)
	if err != nil {
		s.t.Fatal(err)
	}
	if !bytes.Contains(data, []byte("of a later version")) {
		s.t.Error("the store has no field of the later version")
	}
}

// SPDX-License-Identifier: Apache-2.0

package store

import (
	"os"
	"path/filepath"
	"testing"

	"weft/conntrack"
	"weft/internal/shm"
)

// LoadConnections removes the file, whatever it contains.
func TestConnectionsAreLoadedOnce(t *testing.T) {
	dir := t.TempDir()
	s := openTestStore(t, dir)
	defer s.Close()
	table := newTable(t)
	if n, saved, err := s.LoadConnections(table); n != 0 || saved || err != nil {
		t.Errorf("before any stop: %d connections, saved %v, %v", n, saved, err)
	}
	if err := s.SaveConnections(table); err != nil {
		t.Fatal(err)
	}
	if n, saved, err := s.LoadConnections(table); n != 0 || !saved || err != nil {
		t.Errorf("after a stop without connections: %d connections, saved %v, %v", n, saved, err)
	}
	if _, saved, err := s.LoadConnections(table); saved || err != nil {
		t.Errorf("a second start found them again: %v, %v", saved, err)
	}
	path := filepath.Join(dir, connectionsFile)
	if err := os.WriteFile(path, []byte("no connections"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, saved, err := s.LoadConnections(table); !saved || err == nil {
		t.Errorf("of a file of another kind: saved %v, %v", saved, err)
	}
	if _, err := os.Stat(path); !os.IsNotExist(err) {
		t.Errorf("the file is still there: %v", err)
	}
}

func newTable(t *testing.T) *conntrack.Memory {
	t.Helper()
	sizes := conntrack.Sizes{Connections: 64}
	var l shm.Layout
	conntrack.CarveMemory(&l, sizes)
	region, err := shm.Create("connections", l.Off)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { region.Close() })
	table := conntrack.CarveMemory(&shm.Layout{Mem: region.Bytes()}, sizes)
	conntrack.Init(table, 1)
	return &table
}

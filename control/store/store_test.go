package store

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
)

func openTestStore(t *testing.T, dir string) *Store {
	t.Helper()
	s, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// What a change has saved is in the file when it returns: a copy of the file
// taken then, as a process that is killed leaves it, has it all.
func TestStateSurvivesKill(t *testing.T) {
	dir := t.TempDir()
	s := openTestStore(t, dir)
	defer s.Close()
	want := State{Names: map[uint32]string{1: "a", 2: "b"}, Ports: []Port{
		{Number: 1, Name: "a", Options: []string{"type=tap"}},
		{Number: 2, Name: "b", Options: []string{"type=tap", "dev=x"}},
	}}
	for _, p := range want.Ports {
		if err := s.SavePort(p); err != nil {
			t.Fatal(err)
		}
	}
	flows := []Flow{{Slot: 9, Age: 1, Text: "actions=drop"}, {Slot: 3, Age: 2, Text: "ip actions=NORMAL"}, {Slot: 5, Age: 3, Text: "arp"}}
	if err := s.ChangeFlows(slices.Values(flows), nil); err != nil {
		t.Fatal(err)
	}
	if err := s.ChangeFlows(slices.Values([]Flow{{Slot: 3, Age: 2, Text: "ip actions=drop"}}), []uint32{5}); err != nil {
		t.Fatal(err)
	}
	want.Flows = []Flow{flows[0], {Slot: 3, Age: 2, Text: "ip actions=drop"}} // by age

	text, err := os.ReadFile(filepath.Join(dir, "state.db"))
	if err != nil {
		t.Fatal(err)
	}
	copied := t.TempDir()
	if err := os.WriteFile(filepath.Join(copied, "state.db"), text, 0o600); err != nil {
		t.Fatal(err)
	}
	next := openTestStore(t, copied)
	defer next.Close()
	got, err := next.Load()
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("loaded %+v, %v; want %+v", got, err, want)
	}
	if err := next.DeletePort(1); err != nil {
		t.Fatal(err)
	}
	if got, err := next.Load(); err != nil || len(got.Ports) != 1 || got.Names[1] != "a" {
		t.Errorf("after a delete: %+v, %v", got, err)
	}
}

func TestStateDirectoryIsLocked(t *testing.T) {
	dir := t.TempDir()
	s := openTestStore(t, dir)
	_, err := Open(dir)
	if err == nil || !strings.Contains(err.Error(), fmt.Sprint("pid ", os.Getpid())) || !strings.Contains(err.Error(), dir) {
		t.Errorf("a second daemon on the directory: %v", err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if s, err = Open(dir); err != nil {
		t.Fatal(err)
	}
	s.Close()
}

func TestStateErrorsAreOneLine(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	damaged := t.TempDir()
	if err := os.WriteFile(filepath.Join(damaged, "state.db"), []byte(strings.Repeat("no database ", 1000)), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{file, "/dev/null/x", damaged} {
		s, err := Open(dir)
		if err == nil {
			s.Close()
			t.Errorf("%s is taken as a state directory", dir)
			continue
		}
		if !strings.Contains(err.Error(), dir) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %q", dir, err)
		}
	}
}

// A state file that is none is refused with what to do about it.
func TestStateFileThatIsNone(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "state.db"), bytes.Repeat([]byte{7}, 1<<16), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := Open(dir)
	if err == nil || !strings.Contains(err.Error(), "move it away") || strings.Contains(err.Error(), "\n") {
		t.Error(err)
	}
}

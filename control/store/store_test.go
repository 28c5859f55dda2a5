// SPDX-License-Identifier: Apache-2.0

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

	"go.etcd.io/bbolt"

	"weft/control/change"
)

func openTestStore(t *testing.T, dir string) *Store {
	t.Helper()
	s, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// inTx calls fn in a transaction and commits it.
func inTx(t *testing.T, fn func(tx *change.Tx)) {
	t.Helper()
	tx := new(change.Configuration).Begin()
	fn(tx)
	if err := tx.Commit(); err != nil {
		t.Fatal(err)
	}
}

// A saved change is in the file when the call returns, even if the process is killed.
func TestStateSurvivesKill(t *testing.T) {
	dir := t.TempDir()
	s := openTestStore(t, dir)
	defer s.Close()
	want := State{Names: map[uint32]string{1: "a", 2: "b"}, Ports: []Port{
		{Number: 1, Name: "a", Options: []string{"type=tap"}},
		{Number: 2, Name: "b", Options: []string{"type=tap", "dev=x"}},
	}}
	for _, p := range want.Ports {
		inTx(t, func(tx *change.Tx) { s.SavePort(tx, p) })
	}
	flows := []Flow{{Slot: 9, Age: 1, Text: "actions=drop"}, {Slot: 3, Age: 2, Text: "ip actions=NORMAL"}, {Slot: 5, Age: 3, Text: "arp"}}
	if err := s.WriteFlows(slices.Values(flows), nil); err != nil {
		t.Fatal(err)
	}
	if err := s.WriteFlows(slices.Values([]Flow{{Slot: 3, Age: 2, Text: "ip actions=drop"}}), []uint32{5}); err != nil {
		t.Fatal(err)
	}
	want.Flows = []Flow{flows[0], {Slot: 3, Age: 2, Text: "ip actions=drop"}} // sorted by age

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
	inTx(t, func(tx *change.Tx) { next.DeletePort(tx, 1) })
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

// A state file that was cut off is refused with an error of one line, wherever the cut is.
func TestCutStateFile(t *testing.T) {
	dir := t.TempDir()
	s := openTestStore(t, dir)
	var flows []Flow
	for i := range uint32(500) {
		flows = append(flows, Flow{Slot: i, Age: uint64(i), Text: fmt.Sprintf("priority=%d,ip,nw_dst=10.0.%d.%d actions=drop", i, i>>8, i&0xff)})
	}
	if err := s.WriteFlows(slices.Values(flows), nil); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	whole, err := os.ReadFile(filepath.Join(dir, "state.db"))
	if err != nil {
		t.Fatal(err)
	}
	// open returns the number of flows in a file, which does not crash it.
	open := func(text []byte) (int, error) {
		d := t.TempDir()
		if err := os.WriteFile(filepath.Join(d, "state.db"), text, 0o600); err != nil {
			t.Fatal(err)
		}
		s, err := Open(d)
		if err != nil {
			return 0, err
		}
		defer s.Close()
		state, err := s.Load()
		return len(state.Flows), err
	}
	const page = 4096
	for _, n := range []int{1, page - 1, page, 2 * page, 2*page + 1, 3 * page, 4 * page, 6 * page} {
		if flows, err := open(whole[:n]); err == nil || strings.Contains(err.Error(), "\n") {
			t.Errorf("a file of %d bytes: %d flows, %v", n, flows, err)
		}
	}
	if n, err := open(whole); n != len(flows) || err != nil {
		t.Errorf("the whole file: %d flows, %v", n, err)
	}
}

// If a file of another kind is in the place of the state file, the error tells the operator
// what to do.
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

// A state file of another version is refused with an error of one line, and stays as it is.
func TestStateOfAnotherVersion(t *testing.T) {
	dir := t.TempDir()
	set := func(version uint32) {
		t.Helper()
		db, err := bbolt.Open(filepath.Join(dir, "state.db"), 0o600, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer db.Close()
		if err := db.Update(func(tx *bbolt.Tx) error { return tx.Bucket(bucketMeta).Put(keyVersion, number(version)) }); err != nil {
			t.Fatal(err)
		}
	}
	s := openTestStore(t, dir)
	if err := s.WriteFlows(slices.Values([]Flow{{Slot: 1, Text: "priority=1 actions=drop"}}), nil); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	for _, version := range []uint32{0, layoutVersion + 100, 1<<32 - 1} {
		set(version)
		s, err := Open(dir)
		if err == nil {
			s.Close()
			t.Fatalf("version %d is opened", version)
		}
		if !strings.Contains(err.Error(), fmt.Sprint("layout version ", version)) || !strings.Contains(err.Error(), dir) || strings.Contains(err.Error(), "\n") {
			t.Errorf("version %d: %v", version, err)
		}
	}
	set(layoutVersion)
	s = openTestStore(t, dir)
	defer s.Close()
	if state, err := s.Load(); err != nil || len(state.Flows) != 1 {
		t.Errorf("of its own version again: %d flows, %v", len(state.Flows), err)
	}
}

// Open refuses a state directory, or a path to it, that another user can change.
func TestStateDirectoryIsOurs(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: gives a directory away")
	}
	top := t.TempDir()
	const someone = 12345
	theirs := filepath.Join(top, "theirs")
	for _, step := range []error{
		os.Mkdir(theirs, 0o755), os.Mkdir(filepath.Join(theirs, "state"), 0o700), os.Symlink(top, filepath.Join(theirs, "link")),
		os.Chown(theirs, someone, -1), os.Chown(filepath.Join(theirs, "state"), someone, -1),
	} {
		if step != nil {
			t.Fatal(step)
		}
	}
	for path, word := range map[string]string{"theirs/state": "others may change it", "theirs/link/state": "symbolic link"} {
		if s, err := Open(filepath.Join(top, path)); err == nil || !strings.Contains(err.Error(), word) || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: %v", path, err)
			if err == nil {
				s.Close()
			}
		}
	}
	s, err := Open(filepath.Join(top, "a", "state"))
	if err != nil {
		t.Fatal(err)
	}
	s.Close()
	if info, err := os.Stat(filepath.Join(top, "a")); err != nil || info.Mode().Perm() != 0o755 {
		t.Errorf("the directory above: %v, %v", info.Mode(), err)
	}
	state := filepath.Join(top, "a", "state", "state.db")
	if err := os.Rename(state, filepath.Join(top, "elsewhere")); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(filepath.Join(top, "elsewhere"), state); err != nil {
		t.Fatal(err)
	}
	if s, err := Open(filepath.Join(top, "a", "state")); err == nil {
		s.Close()
		t.Error("a state file that is a link is opened")
	}
}

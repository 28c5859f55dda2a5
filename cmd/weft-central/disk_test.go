// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"weft/central/wire"
	"weft/internal/testnet"
)

// A central whose disk is full comes back by itself when the disk has room, with everything
// that it has acknowledged.
func TestFullDisk(t *testing.T) {
	s := &site{t: t, dir: t.TempDir(), ns: testnet.New(t), runs: map[string]*exec.Cmd{}}
	disk := filepath.Join(s.dir, "a")
	if err := os.Mkdir(disk, 0o700); err != nil {
		t.Fatal(err)
	}
	// room for two files of etcd's log, 64 MiB each, and roomToStart
	if err := unix.Mount("tmpfs", disk, "tmpfs", 0, "size=256m,mode=0700"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(disk, unix.MNT_DETACH) })
	s.mustRun("init", "--name", "a", "--address", "127.0.0.1:7700", "--data", "a")
	s.run("a")
	s.setNet(7700, "first", 1)
	filler := filepath.Join(disk, "filler")
	fillDisk(t, filler)
	acknowledged := 1
	for n := 2; s.tryNet(n); n++ { // until etcd's database needs more room
		acknowledged = n
	}
	if err := os.Remove(filler); err != nil {
		t.Fatal(err)
	}
	s.setNet(7700, "last", 1<<20)
	list := strings.Fields(s.nets(7700))
	if len(list) < acknowledged+1 {
		t.Errorf("%d networks, of which %d were acknowledged: %s", len(list), acknowledged+1, list)
	}
}

// fillDisk writes a file until the disk is full.
func fillDisk(t *testing.T, path string) {
	t.Helper()
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for err == nil {
		_, err = f.Write(make([]byte, 4096))
	}
	if !errors.Is(err, unix.ENOSPC) {
		t.Fatal(err)
	}
}

// tryNet declares a network and reports whether this was acknowledged.
func (s *site) tryNet(n int) (acknowledged bool) {
	s.admin(7700, func(ctx context.Context, c wire.AdminClient) error {
		ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
		defer cancel()
		id := fmt.Sprint("n", n)
		_, err := c.Apply(ctx, &wire.ChangeRequest{Id: id, Changes: []*wire.Change{{Change: &wire.Change_SetNet{
			SetNet: &wire.Net{Id: id, Name: id, Vni: uint32(n)}}}}})
		acknowledged = err == nil
		return nil
	})
	return acknowledged
}

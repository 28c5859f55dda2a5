// SPDX-License-Identifier: Apache-2.0

package store

import (
	"errors"
	"io/fs"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"weft/conntrack"
	"weft/internal/clock"
)

// connectionsFile is the name of the file that keeps the tracked connections while the daemon
// is stopped.
const connectionsFile = "connections"

// bootID returns an identifier of the machine's present boot, or "" if it is unknown.
func bootID() string {
	id, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "" // LoadConnections then also loads connections of an earlier boot
	}
	return strings.TrimSpace(string(id))
}

// SaveConnections writes the tracked connections to a file for the next start. No engine may
// use the table any more.
func (s *Store) SaveConnections(table *conntrack.Memory) error {
	f, err := s.dir.OpenFile(connectionsFile+".new", os.O_CREATE|os.O_TRUNC|os.O_WRONLY|unix.O_NOFOLLOW, 0o600)
	if err == nil {
		err = table.Save(f, bootID(), clock.Monotonic())
		err = errors.Join(err, f.Close())
	}
	if err == nil {
		err = s.dir.Rename(connectionsFile+".new", connectionsFile)
	}
	return err
}

// LoadConnections adds the saved connections to the table and removes their file. No
// engine may use the table yet. LoadConnections returns the number of added
// connections, even with an error. wasSaved is false if there is no file.
func (s *Store) LoadConnections(table *conntrack.Memory) (n int, wasSaved bool, err error) {
	f, err := s.dir.Open(connectionsFile)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, false, nil
	}
	if err == nil {
		n, err = table.Load(f, bootID(), clock.Monotonic())
		f.Close()
	}
	_ = s.dir.Remove(connectionsFile)
	return n, true, err
}

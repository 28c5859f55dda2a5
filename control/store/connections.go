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

// connectionsFile is the name of the file that has the tracked connections between a
// stop of the daemon and its next start.
const connectionsFile = "connections"

// bootID returns the machine's boot identifier, or "" if the kernel gives none.
func bootID() string {
	id, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "" // without an identifier the connections of an earlier boot are loaded too; most of them have expired
	}
	return strings.TrimSpace(string(id))
}

// SaveConnections writes the tracked connections for the daemon's next start. The
// caller guarantees that no engine uses the connection table any more.
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

// LoadConnections adds the connections that the daemon's last stop saved to the
// connection table, and removes their file. A later start must not load the file
// again, because its connections would then seem more recent than they are. The
// caller guarantees that no engine uses the table yet. LoadConnections returns the
// number of added connections, which may be positive even with an error. saved is
// false if the last stop saved no connections.
func (s *Store) LoadConnections(table *conntrack.Memory) (n int, saved bool, err error) {
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

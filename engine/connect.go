// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Connect connects to the engine that serves stateDir. The engine then closes its connection to an
// older control process. If there is no engine, the error wraps fs.ErrNotExist or ECONNREFUSED.
func Connect(stateDir string) (*Client, error) {
	conn, err := dialServing(stateDir)
	for end := time.Now().Add(spawnTimeout); err != nil && locked(stateDir) && time.Now().Before(end); {
		time.Sleep(time.Millisecond) // a spare engine may hold the lock before it has written its process id
		conn, err = dialServing(stateDir)
	}
	if err != nil {
		return nil, fmt.Errorf("engine: %w", err)
	}
	pid, pidfd, err := peer(conn)
	if err != nil {
		conn.Close()
		return nil, fmt.Errorf("engine: %w", err)
	}
	return newClient(conn, pid, pidfd), nil
}

// dialServing connects to the socket of the engine whose process id is in the lock file.
func dialServing(stateDir string) (*net.UnixConn, error) {
	text, err := os.ReadFile(filepath.Join(stateDir, LockName))
	if err != nil {
		return nil, err
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		return nil, fmt.Errorf("%s: expected a process id: %w", LockName, fs.ErrNotExist)
	}
	conn, err := dialSocket(filepath.Join(stateDir, socketName(pid)))
	if errors.Is(err, fs.ErrNotExist) {
		return dialSocket(filepath.Join(stateDir, formerSocket))
	}
	return conn, err
}

// RemoveSockets removes the sockets that ended engines have left in a state directory, because an
// engine in its sandbox cannot remove its own. It keeps the sockets of the processes in keep.
func RemoveSockets(stateDir string, keep ...int) {
	// error ignored: a socket file that stays is harmless, because nobody listens on it
	entries, _ := os.ReadDir(stateDir)
	for _, e := range entries {
		name := e.Name()
		ours := name == formerSocket || strings.HasPrefix(name, "engine-") && strings.HasSuffix(name, ".sock")
		if ours && !slices.ContainsFunc(keep, func(pid int) bool { return name == socketName(pid) }) {
			_ = os.Remove(filepath.Join(stateDir, name))
		}
	}
}

// locked reports whether an engine has locked the state directory.
func locked(stateDir string) bool {
	f, err := os.Open(filepath.Join(stateDir, LockName))
	if err != nil {
		return false
	}
	defer f.Close() // Close also releases the lock, if the Flock below has acquired it
	return unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) == unix.EWOULDBLOCK
}

// Disown removes the lock file of a state directory, so that Spawn does not fail because of a stuck
// engine. The caller must have got ErrStuck from Quiesce. It must have no spare engine, because a
// spare engine would wait for the old lock file.
func Disown(stateDir string) error { return os.Remove(filepath.Join(stateDir, LockName)) }

// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// Succeed makes the spare engine serve in place of a stuck engine, which keeps its lock until its process
// ends. Succeed puts another lock file into the state directory, locks it and passes it to the spare
// engine. The caller must have got ErrStuck from Quiesce, and calls Engage next.
func (s *Spare) Succeed(stateDir string) error {
	lock, err := newLock(stateDir, s.cmd.Process.Pid)
	if err != nil {
		return err
	}
	defer lock.Close() // the spare engine's descriptor keeps the lock
	return sendMessage(s.client.conn, &Request{Op: OpServe}, []int{int(lock.Fd())})
}

// newLock replaces the lock file of a state directory by a locked one that has the process id pid.
func newLock(stateDir string, pid int) (*os.File, error) {
	name := filepath.Join(stateDir, LockName)
	next := name + ".next"
	if err := os.Remove(next); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("engine: %w", err)
	}
	lock, err := os.OpenFile(next, os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("engine: %w", err)
	}
	if err = unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err == nil {
		_, err = fmt.Fprintln(lock, pid)
	}
	if err == nil {
		err = os.Rename(next, name)
	}
	if err != nil {
		lock.Close()
		return nil, fmt.Errorf("engine: lock %s: %w", next, err)
	}
	return lock, nil
}

// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// etcd stops when its disk is full, and so the central cannot go on. The central executes its program
// again (execve), and the new process waits until the disk has room. Meanwhile it does not listen, so
// that hosts and administrators connect to other centrals. Changes that it has acknowledged are safe in
// etcd's log.

const (
	// diskFullVariable is an environment variable that startAgain sets for the new program.
	diskFullVariable = "WEFT_CENTRAL_DISK_FULL"
	// roomToStart is the free space in bytes for which the new program waits. etcd needs 64 MiB for its
	// log. The rest is for its database.
	roomToStart = 80 << 20
	// roomEvery is the interval at which the new program looks for free space.
	roomEvery = time.Second
)

// startAgain replaces the process by a new start of the same program (execve). It returns only if that
// fails.
func (c *central) startAgain() {
	c.log.Error("the disk is full; this central starts again when it has room", "data", c.data)
	err := unix.Exec("/proc/self/exe", os.Args, append(os.Environ(), diskFullVariable+"=1"))
	c.log.Error("it does not start again", "error", err)
}

// awaitRoom waits until the disk has free space, if startAgain has started this program. It returns
// false if ctx ends first.
func (c *central) awaitRoom(ctx context.Context) bool {
	if os.Getenv(diskFullVariable) == "" {
		return true
	}
	_ = os.Unsetenv(diskFullVariable) // fails only for wrong names
	tick := time.NewTicker(roomEvery)
	defer tick.Stop()
	for logged := false; ; logged = true {
		free, err := freeBytes(c.data)
		if err == nil && free >= roomToStart {
			c.log.Info("the disk has room again", "data", c.data)
			return true
		}
		if !logged {
			c.log.Warn("waiting for room on the disk", "data", c.data, "free", fmt.Sprint(free>>20, " MiB"), "needed", fmt.Sprint(roomToStart>>20, " MiB"), "error", err)
		}
		select {
		case <-ctx.Done():
			return false
		case <-tick.C:
		}
	}
}

// freeBytes returns the bytes that users other than root may still use in a directory's file system.
func freeBytes(dir string) (int64, error) {
	var s unix.Statfs_t
	if err := unix.Statfs(dir, &s); err != nil {
		return 0, fmt.Errorf("%s: %w", dir, err)
	}
	return int64(s.Bavail) * s.Bsize, nil
}

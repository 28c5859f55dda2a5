// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// ErrStuck is the error of Kill if the engine has got SIGKILL but does not end. The
// kernel then keeps one of its threads, for example in a page fault. Such an engine
// executes no instruction any more, so another engine may take over its ports. See
// Disown.
var ErrStuck = errors.New("engine: killed, but the process does not end")

// Condemn sends the engine SIGKILL and closes the connection, without waiting.
// Requests return ErrGone.
func (c *Client) Condemn() {
	c.condemned.Store(true)
	// error ignored: Kill sends the signal again and reports the error
	_ = unix.PidfdSendSignal(c.pidfd, unix.SIGKILL, nil, 0)
	c.conn.Close()
}

// Wait waits until the engine's process has ended. It blocks the calling thread in the
// kernel, so that Wait returns as soon as the thread gets a core.
func (c *Client) Wait() {
	fd, err := unix.FcntlInt(uintptr(c.pidfd), unix.F_DUPFD_CLOEXEC, 0) // Close may close pidfd during the wait
	if err != nil {
		<-c.ended
		return
	}
	defer unix.Close(fd)
	fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	for {
		if n, err := unix.Poll(fds, -1); n > 0 && err == nil {
			return
		}
	}
}

// Halt ends the engine's workers between two passes, when no worker handles a frame, so
// that no frame is lost. When it returns nil, the engine uses no ring any more, and the
// spare engine serves. The caller kills the engine later. An engine of an earlier version
// refuses.
func (c *Client) Halt() error {
	_, err := c.call(&Request{Op: OpHalt}, nil)
	return err
}

// Stop ends the engine in good order and waits until its process has ended.
func (c *Client) Stop() error {
	if _, err := c.call(&Request{Op: OpStop}, nil); err != nil {
		return err
	}
	return c.awaitDeath(endTimeout)
}

// MayKill reports whether this process may send signals to the engine. It may not if
// another user runs the engine and this process lacks CAP_KILL.
func (c *Client) MayKill() bool {
	return !errors.Is(unix.PidfdSendSignal(c.pidfd, 0, nil, 0), unix.EPERM)
}

// Kill sends SIGKILL to the engine and waits until its process has ended. After Condemn
// it waits at most for stuckTimeout, and returns ErrStuck if the engine has not ended.
// Kill must precede the start of another engine, because two engines must never use the
// same ring. If this process may not kill the engine, Kill calls Stop instead.
func (c *Client) Kill() error {
	if !c.MayKill() {
		if err := c.Stop(); err != nil {
			return fmt.Errorf("engine: process %d belongs to another user and does not stop (%w): end it as root, kill -9 %d", c.pid, err, c.pid)
		}
		return nil
	}
	if err := unix.PidfdSendSignal(c.pidfd, unix.SIGKILL, nil, 0); err != nil && err != unix.ESRCH {
		return fmt.Errorf("engine: kill %d: %w", c.pid, err)
	}
	if !c.condemned.Load() {
		return c.awaitDeath(endTimeout)
	}
	var err error
	for end := time.Now().Add(stuckTimeout); time.Now().Before(end); {
		if err = c.awaitDeath(stuckEvery); err == nil || threadsEnded(c.pid) {
			return nil
		}
	}
	return err
}

// threadsEnded reports whether every thread of a process has ended and closed its
// files. Such a process may still exist as a zombie if a debugger traces it.
func threadsEnded(pid int) bool {
	names, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
	if err != nil || len(names) == 0 {
		return false
	}
	for _, name := range names {
		text, err := os.ReadFile(name)
		if err != nil {
			continue
		}
		_, rest, _ := strings.Cut(string(text[max(0, bytes.LastIndexByte(text, ')')):]), " ")
		if !strings.HasPrefix(rest, "Z") && !strings.HasPrefix(rest, "X") {
			return false
		}
	}
	return true
}

func (c *Client) awaitDeath(timeout time.Duration) error {
	deadline := time.Now().Add(timeout)
	for {
		left := time.Until(deadline)
		if left <= 0 {
			return fmt.Errorf("%w: %d", ErrStuck, c.pid)
		}
		fds := []unix.PollFd{{Fd: int32(c.pidfd), Events: unix.POLLIN}}
		if n, err := unix.Poll(fds, int(left.Milliseconds())+1); n > 0 && err == nil {
			return nil
		}
	}
}

// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"weft/internal/procstat"
)

// ErrStuck is the error of Kill and Quiesce if the engine has got SIGKILL but does not end. The
// kernel then keeps one of its threads, for example in a page fault. Such an engine
// executes no instruction any more, so another engine may take over its ports. See
// Spare.Succeed and Disown.
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

// Kill sends SIGKILL to the engine and waits until its process has ended. After Condemn it waits at most
// for stuckTimeout, and returns ErrStuck if the engine has not ended. If this process may not kill the
// engine, Kill calls Stop instead.
func (c *Client) Kill() error {
	if stopped, err := c.signal(); stopped || err != nil {
		return err
	}
	timeout := endTimeout
	if c.condemned.Load() {
		timeout = stuckTimeout
	}
	for end := time.Now().Add(timeout); ; {
		err := c.awaitDeath(stuckEvery)
		if err == nil || standstillOf(c.pid) == ended {
			return nil
		}
		if time.Now().After(end) {
			return err
		}
	}
}

// Quiesce is Kill for the replacement of an engine, which must precede the start of another one: two
// engines must never use the same ring. It returns ErrStuck as soon as the process executes no
// instruction any more but its end takes time.
func (c *Client) Quiesce() error {
	if stopped, err := c.signal(); stopped || err != nil {
		return err
	}
	var leftAt time.Time // since then all threads exit; zero: they do not
	for end := time.Now().Add(stuckTimeout); ; {
		if c.awaitDeath(stuckEvery) == nil {
			return nil
		}
		now := time.Now()
		switch threads := standstillOf(c.pid); {
		case threads == ended:
			return nil
		case threads == held:
			return fmt.Errorf("%w: the kernel holds a thread of %d", ErrStuck, c.pid)
		case threads == moving:
			leftAt = time.Time{}
		case leftAt.IsZero():
			leftAt = now
		case now.Sub(leftAt) >= exitTimeout:
			return fmt.Errorf("%w: the exit of %d takes longer than %v", ErrStuck, c.pid, exitTimeout)
		}
		// Without a core, a thread shows that it exits much later than the kernel has made sure of it.
		if now.After(end) {
			return fmt.Errorf("%w: %d", ErrStuck, c.pid)
		}
	}
}

// signal sends SIGKILL to the engine. If this process may not, it stops the engine instead, and stopped
// is true.
func (c *Client) signal() (stopped bool, err error) {
	if !c.MayKill() {
		if err := c.Stop(); err != nil {
			return true, fmt.Errorf("engine: process %d belongs to another user and does not stop (%w): end it as root, kill -9 %d", c.pid, err, c.pid)
		}
		return true, nil
	}
	if err := unix.PidfdSendSignal(c.pidfd, unix.SIGKILL, nil, 0); err != nil && err != unix.ESRCH {
		return false, fmt.Errorf("engine: kill %d: %w", c.pid, err)
	}
	return false, nil
}

// standstill describes the threads of a process that has got SIGKILL. Such a thread executes no
// instruction of the program any more once it exits, or once it is blocked in the kernel: the kernel
// checks for SIGKILL before a thread returns to the program.
type standstill int

const (
	moving  standstill = iota // a thread may execute instructions
	held                      // a thread is blocked, the others exit
	leaving                   // every thread exits
	ended                     // every thread has ended and closed its files
)

// standstillOf returns the state of a process that has got SIGKILL. A process that has ended may still
// exist as a zombie if a debugger traces it.
func standstillOf(pid int) standstill {
	names, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
	if err != nil || len(names) == 0 {
		return moving
	}
	least := ended
	for _, name := range names {
		text, err := os.ReadFile(name)
		if err != nil {
			continue // the thread has ended
		}
		least = min(least, standstillOfThread(text))
	}
	return least
}

// standstillOfThread is standstillOf of one thread. text is its proc_pid_stat(5).
func standstillOfThread(text []byte) standstill {
	t, err := procstat.Parse(text)
	switch {
	case err != nil:
		return moving
	case t.Ended():
		return ended
	case t.Ending:
		return leaving
	case t.State == 'D':
		return held
	}
	return moving
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

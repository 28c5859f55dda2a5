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

// ErrStuck is the error of Kill and Quiesce if the engine has got SIGKILL but its process does not end. The
// kernel then holds one of its threads, for example in a page fault. Such an engine runs no code of the
// program any more, so another engine may take over its ports: see Spare.Succeed and Disown.
var ErrStuck = errors.New("engine: killed, but the process does not end")

// Condemn sends SIGKILL to the engine and closes the connection, without waiting. Requests in progress
// return ErrGone.
func (c *Client) Condemn() {
	c.condemned.Store(true)
	// error ignored: Kill sends the signal again and reports the error
	_ = unix.PidfdSendSignal(c.pidfd, unix.SIGKILL, nil, 0)
	c.conn.Close()
}

// Wait waits until the engine's process has ended. It blocks the calling thread in the kernel, and so
// returns sooner than a goroutine that the Go scheduler must wake.
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

// Halt ends each worker of the engine after the current turn of its loop, when the worker handles no frame,
// so that no frame is lost. When it returns nil, the engine uses no ring any more, and the spare engine
// begins to serve. The caller must kill the halted engine later. An engine of an earlier version refuses.
func (c *Client) Halt() error {
	_, err := c.call(&Request{Op: OpHalt}, nil)
	return err
}

// Stop asks the engine to end, and waits until its process has ended.
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

// Quiesce kills an engine before another one is started, because two engines must never use the same ring.
// It sends SIGKILL and waits, like Kill. It returns ErrStuck as soon as the process runs no code of the
// program any more but takes long to end.
func (c *Client) Quiesce() error {
	if stopped, err := c.signal(); stopped || err != nil {
		return err
	}
	var leftAt time.Time // time since which all threads exit; zero: some do not
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
		// A thread that waits for a core does not show yet that it exits. The kernel no longer lets it
		// return to the program, though.
		if now.After(end) {
			return fmt.Errorf("%w: %d", ErrStuck, c.pid)
		}
	}
}

// signal sends SIGKILL to the engine. If this process may not do that, signal stops the engine instead
// and returns stopped.
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

// standstill says what the threads of a process that has got SIGKILL still do. A thread that exits, or that
// is blocked in the kernel, runs no code of the program any more: the kernel checks for SIGKILL before a
// thread returns to the program.
type standstill int

const (
	moving  standstill = iota // a thread may run code of the program
	held                      // a thread is blocked in the kernel, the others exit
	leaving                   // every thread exits
	ended                     // every thread has ended and closed its files
)

// standstillOf returns the standstill of a process that has got SIGKILL. An ended process may still
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

// standstillOfThread returns the standstill of one thread. text is its file stat in /proc, see
// proc_pid_stat(5).
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

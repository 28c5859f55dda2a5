// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// spawnTimeout is the time in which a started engine must answer; tests shorten it.
var spawnTimeout = 10 * time.Second

// Spawn starts the command "exe engine --state stateDir" in a process group of its own and connects to
// it. The engine outlives the caller and uses the caller's standard error. Spawn fails if another
// engine serves stateDir.
func Spawn(exe, stateDir string) (*Client, error) {
	s, err := launch(exec.Command(exe, "engine", "--state", stateDir, controlFlag))
	if err != nil {
		return nil, err
	}
	return s.Engage()
}

// Spare is a running engine process that takes over when the serving engine dies. It ends when its
// control process ends, unless its workers have started. Only one goroutine at a time may call Engage
// and Close.
type Spare struct {
	cmd     *exec.Cmd
	client  *Client
	exited  chan struct{} // closed when the process has ended; failure is valid from then on
	failure error
}

// Prepare starts a spare engine while another engine serves stateDir. workers is the number of workers
// that the spare engine will have. It starts the process like Spawn, but does not wait for it.
func Prepare(exe, stateDir string, workers int) (*Spare, error) {
	return launch(exec.Command(exe, "engine", "--state", stateDir, controlFlag, "--spare="+strconv.Itoa(workers)))
}

// controlFlag tells an engine which of its descriptors is the connection to the control process. Without a
// socket file, the connection takes less time while guests wait.
const controlFlag = "--control=3"

func launch(cmd *exec.Cmd) (*Spare, error) {
	ours, theirs, err := connection()
	if err != nil {
		return nil, fmt.Errorf("engine: %w", err)
	}
	defer theirs.Close()
	cmd.Env = append(os.Environ(), "GODEBUG=asyncpreemptoff=1", "GOGC=off")
	if cmd.Stderr == nil {
		cmd.Stderr = os.Stderr
	}
	cmd.ExtraFiles = []*os.File{theirs}
	// A process group of its own protects the engine from the terminal's signals. A
	// session of its own would be wrong: Linux first divides a core among sessions
	// (sched(7), autogroup), so workers would not yield to other processes of the
	// switch's session.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		ours.Close()
		return nil, fmt.Errorf("engine: start: %w", err)
	}
	pidfd, err := unix.PidfdOpen(cmd.Process.Pid, 0) // the process is not reaped yet, so its id is still valid
	if err != nil {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		ours.Close()
		return nil, fmt.Errorf("engine: pidfd of %d: %w", cmd.Process.Pid, err)
	}
	s := &Spare{cmd: cmd, client: newClient(ours, cmd.Process.Pid, pidfd), exited: make(chan struct{})}
	go func() { // reaps the process whenever it ends
		s.failure = cmd.Wait()
		close(s.exited)
	}()
	return s, nil
}

// connection returns the two ends of a socket pair, of the same type as the engine's socket.
func connection() (ours *net.UnixConn, theirs *os.File, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, err
	}
	theirs = os.NewFile(uintptr(fds[1]), "engine")
	if ours, err = fileConn(fds[0]); err != nil {
		theirs.Close()
	}
	return ours, theirs, err
}

// AwaitReady waits until the spare engine has prepared itself. If that takes longer than spawnTimeout or
// fails, AwaitReady kills the spare engine and returns an error.
func (s *Spare) AwaitReady() error {
	timeout := time.NewTimer(spawnTimeout)
	defer timeout.Stop()
	select {
	case <-s.client.waiting:
		return nil
	case <-s.client.ended:
		return s.failed()
	case <-timeout.C:
		return s.silent()
	}
}

// Abandon kills a spare engine without waiting for its end.
func (s *Spare) Abandon() { go s.Close() }

// Close kills a spare engine and waits until its process has ended.
func (s *Spare) Close() {
	_ = s.cmd.Process.Kill()
	<-s.exited
	s.client.Close()
}

// Engage waits until the spare engine serves, and returns its client. If that takes longer than
// spawnTimeout or fails, Engage kills the spare engine and returns an error.
func (s *Spare) Engage() (*Client, error) {
	timeout := time.NewTimer(spawnTimeout)
	defer timeout.Stop()
	select {
	case r := <-s.client.replies: // the engine's greeting
		closeAll(r.fds)
		return s.client, nil
	case <-s.client.ended:
		return nil, s.failed()
	case <-timeout.C:
		return nil, s.silent()
	}
}

// failed returns the error of an engine whose process has ended before it served.
func (s *Spare) failed() error {
	s.Close()
	return fmt.Errorf("engine: ended at its start: %v", s.failure)
}

// silent kills an engine that has not answered within spawnTimeout, and returns an error.
func (s *Spare) silent() error {
	s.Close()
	return fmt.Errorf("engine: did not answer within %v", spawnTimeout)
}

// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"runtime/debug"

	"golang.org/x/sys/unix"

	"weft/datapath"
	"weft/flowtable"
	"weft/internal/cpu"
	"weft/internal/sandbox"
	"weft/internal/shm"
)

// LockName is the name of the lock file in the state directory. The engine that serves the directory has
// locked it, so that no second engine serves. The file contains the engine's process id.
const LockName = "engine.lock"

// Options are the options with which an engine is started.
type Options struct {
	// Control is an inherited descriptor of the connection to the control process; 0: none.
	Control int
	// Spare is the number of workers for which a spare engine prepares memory; 0: this is no spare
	// engine. A spare engine waits until no other engine serves the directory.
	Spare int
	// Rehearsal is set for an engine that only shows that it can start its workers: see the function
	// Rehearse.
	Rehearsal bool
}

// Serve runs the engine: it answers the requests of the control process on the socket in stateDir until
// OpStop. openers has an Opener for each kind of device. The process must run nothing else, because Serve
// turns the garbage collector off and enters the sandbox, in which an Opener can open no file. Serve
// ignores the signals of a terminal or a service manager, except for SIGTERM while no control process is
// connected.
func Serve(stateDir string, o Options, openers map[string]Opener) error {
	terminate := make(chan os.Signal, 1)
	signal.Notify(terminate, unix.SIGTERM)
	signal.Ignore(unix.SIGINT, unix.SIGHUP, unix.SIGPIPE, unix.SIGTTOU)
	debug.SetGCPercent(-1)
	debug.SetMemoryLimit(heapLimit)
	// not fatal: a front end can then block a worker, but everything else works
	if err := shm.Prepare(); err != nil {
		fmt.Fprintf(os.Stderr, "engine: %v; without a context a front end can block a worker\n", err)
	}
	s := &server{openers: openers, kept: map[string]*Kept{}, garbage: newCollector()}
	if o.Spare > 0 {
		// Guests wait while a spare engine takes over, so it needs a short scheduling latency. Error
		// ignored: without the privilege, the latency is normal.
		_ = cpu.Urgent()
	}
	if o.Rehearsal {
		return s.rehearse(o.Control)
	}
	lock, l, err := openFiles(stateDir)
	if err != nil {
		return err
	}
	defer lock.Close()
	defer l.Close()
	if err := sandbox.Enter(); err != nil {
		return fmt.Errorf("engine: sandbox: %w", err)
	}
	if o.Spare == 0 {
		err = acquire(lock, false)
	} else {
		lock, err = prepared(lock, o)
	}
	if err != nil {
		return err
	}
	s.lock = lock
	defer s.close()
	c := &connections{server: s, stopped: make(chan struct{}), done: make(chan struct{})}
	close(c.done)
	go c.obey(terminate)
	var conn *net.UnixConn
	if o.Control > 0 {
		if conn, err = fileConn(o.Control); err != nil {
			return fmt.Errorf("engine: connection to control: %w", err)
		}
	}
	if o.Spare > 0 { // before any disk access, because guests wait
		c.take(conn, true)
	}
	if err := sign(lock); err != nil {
		return err
	}
	if conn != nil && o.Spare == 0 {
		c.take(conn, true)
	}
	return c.accept(l)
}

// rehearse answers the control process until the connection ends; control is the descriptor of the
// connection. It uses neither the lock nor the socket of the state directory, and attaches no device.
func (s *server) rehearse(control int) error {
	if err := sandbox.Enter(); err != nil {
		return fmt.Errorf("engine: sandbox: %w", err)
	}
	conn, err := fileConn(control)
	if err != nil {
		return fmt.Errorf("engine: connection to control: %w", err)
	}
	defer s.close()
	s.openers = nil
	if err := sendMessage(conn, Reply{}, nil); err != nil {
		return err
	}
	_ = s.converse(conn) // error ignored: control ends the rehearsal by closing the connection
	return nil
}

// prepared prepares a spare engine and waits until it may serve. It then returns the lock file, which the
// engine has locked.
func prepared(lock *os.File, o Options) (*os.File, error) {
	waiting, err := duplicateConn(o.Control)
	if err != nil {
		return nil, err
	}
	go reserve(o.Spare, waiting)
	control, err := duplicateConn(o.Control)
	if err != nil {
		return nil, err
	}
	return awaitTurn(lock, control)
}

// duplicateConn returns a duplicate of the connection to the control process; nil: there is none.
func duplicateConn(control int) (*net.UnixConn, error) {
	if control == 0 {
		return nil, nil
	}
	dup, err := unix.FcntlInt(uintptr(control), unix.F_DUPFD_CLOEXEC, 3)
	if err != nil {
		return nil, fmt.Errorf("engine: connection to control: %w", err)
	}
	return fileConn(dup)
}

// reserve allocates the memory for the flow caches of this number of workers. It then tells the control
// process on conn that the spare engine waits. It owns conn, which may be nil.
func reserve(workers int, conn *net.UnixConn) {
	runtime.LockOSThread() // never unlocked, so that the thread ends with its goroutine
	_ = cpu.ShortSlice()
	flowtable.Reserve(datapath.DefaultSizes.Cache, workers)
	if conn != nil {
		_ = sendMessage(conn, Reply{Waiting: true}, nil) // error ignored: without control, awaitCall ends the process
		conn.Close()
	}
}

// openFiles opens the lock file, without locking it, and makes the engine's socket. Nobody connects to
// the socket of a spare engine before the engine has written its process id to the lock file.
func openFiles(stateDir string) (lock *os.File, l *net.UnixListener, err error) {
	lock, err = os.OpenFile(filepath.Join(stateDir, LockName), os.O_CREATE|os.O_RDWR|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, nil, fmt.Errorf("engine: %w", err)
	}
	if l, err = listenSocket(filepath.Join(stateDir, socketName(os.Getpid()))); err != nil {
		lock.Close()
		return nil, nil, fmt.Errorf("engine: %w", err)
	}
	return lock, l, nil
}

// acquire locks f, the lock file of the state directory, which makes this process the engine that
// serves. If another engine has locked it and wait is true, acquire waits until that engine has ended.
// If wait is false, it returns an error.
func acquire(f *os.File, wait bool) error {
	how := unix.LOCK_EX
	if !wait {
		how |= unix.LOCK_NB
	}
	err := error(unix.EINTR)
	for err == unix.EINTR {
		err = unix.Flock(int(f.Fd()), how)
	}
	switch err {
	case nil:
		return nil
	case unix.EWOULDBLOCK:
		return fmt.Errorf("engine: another engine serves %s", filepath.Dir(f.Name()))
	default:
		return fmt.Errorf("engine: lock %s: %w", f.Name(), err)
	}
}

// sign writes this process's id to the lock file.
func sign(lock *os.File) error {
	err := lock.Truncate(0)
	if err == nil {
		_, err = lock.Seek(0, io.SeekStart) // a halted engine may have signed before
	}
	if err == nil {
		_, err = fmt.Fprintln(lock, os.Getpid())
	}
	if err != nil {
		return fmt.Errorf("engine: %w", err)
	}
	return nil
}

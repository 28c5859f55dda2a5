// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"net"
	"os"
	"time"
)

// In this file, a spare engine waits until it may serve. It may serve when the serving engine has ended,
// which unlocks the state directory. It may also serve when the control process has sent OpServe, because
// the serving engine is stuck. A spare engine ends with its control process.

// turn is the result of a spare engine's wait for the lock: the locked file, or an error.
type turn struct {
	lock *os.File
	err  error
}

// awaitTurn waits until this engine may serve, and then returns the lock file, which is locked. lockFile is
// the present lock file. controlConn is a duplicate of the connection to the control process, which
// awaitTurn closes; nil: there is no control process.
func awaitTurn(lockFile *os.File, controlConn *net.UnixConn) (*os.File, error) {
	released := make(chan turn, 1)
	go func() { released <- turn{lockFile, acquire(lockFile, true)} }()
	if controlConn == nil {
		t := <-released
		return t.lock, t.err
	}
	defer controlConn.Close()
	called := make(chan *os.File, 1)
	listened := make(chan struct{})
	go func() {
		defer close(listened)
		if next := awaitCall(controlConn); next != nil {
			called <- next
		}
	}()
	select {
	case next := <-called:
		return next, nil
	case t := <-released:
		// OpServe may come until the deadline below. The method converse receives later messages.
		_ = controlConn.SetReadDeadline(time.Now())
		<-listened
		select {
		case next := <-called:
			return next, nil
		default:
			return t.lock, t.err
		}
	}
}

// awaitCall waits for OpServe and returns the lock file that it brings. If the connection to the control
// process ends before, the process exits. awaitCall returns nil after the connection's read deadline.
func awaitCall(control *net.UnixConn) *os.File {
	for {
		var req Request
		fds, malformed, err := receiveMessage(control, &req)
		if os.IsTimeout(err) {
			return nil
		}
		if err != nil {
			os.Exit(0)
		}
		if malformed != nil || req.Op != OpServe || len(fds) != 1 {
			closeAll(fds) // control sends nothing else to a spare engine
			continue
		}
		return os.NewFile(uintptr(fds[0]), LockName)
	}
}

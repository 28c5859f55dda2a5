// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"net"
	"os"
	"time"
)

// This file has the wait of a spare engine. Its turn comes when the serving engine ends, which unlocks
// the state directory. It also comes when control sends OpServe, because the serving engine is stuck.
// A spare engine ends with its control process.

// turn is the result of a wait for the lock: the locked file, or an error.
type turn struct {
	lock *os.File
	err  error
}

// awaitTurn waits until this engine may serve, and returns the lock file that the engine has locked
// then. lockFile is the present lock file. controlConn is a duplicate of the connection to control,
// which awaitTurn closes; nil: there is no control process.
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
		// Control may send OpServe at this moment. Later messages are for the method converse.
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

// awaitCall waits for OpServe and returns the lock file that it brings. If the connection to control
// ends before, the process ends. awaitCall returns nil after the connection's read deadline.
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

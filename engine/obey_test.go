// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

// SIGTERM ends an engine only while no control process is connected.
func TestTerminateWithoutControl(t *testing.T) {
	c := &connections{server: &server{}, stopped: make(chan struct{})}
	signals := make(chan os.Signal)
	obeyed := make(chan struct{})
	go func() { c.obey(signals); close(obeyed) }()
	c.attached.Store(true)
	signals <- unix.SIGTERM
	signals <- unix.SIGTERM // taken after the first connection has ended
	select {
	case <-c.stopped:
		t.Fatal("the engine ends with a control process")
	default:
	}
	c.attached.Store(false)
	signals <- unix.SIGTERM
	close(signals)
	<-obeyed
	select {
	case <-c.stopped:
	default:
		t.Error("the engine does not end without a control process")
	}
}

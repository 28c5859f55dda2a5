// SPDX-License-Identifier: Apache-2.0

package main

import (
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// relent returns even if another thread makes the eventfd blocking meanwhile. (An earlier version
// blocked for an hour.)
func TestRelentEnds(t *testing.T) {
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	stop, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		for {
			select {
			case <-stop:
				return
			default:
				_ = setBlocking(fd)
			}
		}
	}()
	defer func() { close(stop); <-ended }()
	relented := make(chan struct{})
	go func() {
		defer close(relented)
		relent(fd)
	}()
	select {
	case <-relented:
	case <-time.After(time.Minute):
		t.Fatal("relent hangs on a blocking eventfd")
	}
}

// SPDX-License-Identifier: Apache-2.0

package main

import (
	"runtime"
	"testing"

	"golang.org/x/sys/unix"

	"weft/internal/waitfor"
)

// A lost datagram does not stop a measurement of round trips. Although the Go runtime interrupts the
// system call again and again, read returns.
func TestReadOfALostDatagram(t *testing.T) {
	e := newEndpointSocket()
	defer unix.Close(e.fd)
	runtime.UnlockOSThread()
	if err := unix.Bind(e.fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		t.Fatal(err)
	}
	self, err := unix.Getsockname(e.fd)
	if err != nil {
		t.Fatal(err)
	}
	send := func() {
		if err := unix.Sendto(e.fd, []byte("late"), 0, self); err != nil {
			t.Error(err)
		}
	}
	waitfor.Return(t, "read without a datagram", send, func() {
		runtime.LockOSThread()
		if _, errno := e.read(); errno != unix.EAGAIN {
			t.Errorf("read without a datagram: %v", errno)
		}
	})
}

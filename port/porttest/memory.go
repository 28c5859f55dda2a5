// SPDX-License-Identifier: Apache-2.0

// Package porttest has ports for tests: a port over mapped memory, and a port over a
// socket between two processes.
package porttest

import (
	"golang.org/x/sys/unix"
)

// memory is a mapped file that a test can truncate, as a hostile guest does.
type memory struct {
	fd    int
	bytes []byte
}

func newMemory(size int) memory {
	page := unix.Getpagesize()
	size = (size + page - 1) &^ (page - 1)
	fd, err := unix.MemfdCreate("porttest", unix.MFD_CLOEXEC)
	if err != nil {
		panic(err)
	}
	if err := unix.Ftruncate(fd, int64(size)); err != nil {
		panic(err)
	}
	mem, err := unix.Mmap(fd, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		panic(err)
	}
	return memory{fd: fd, bytes: mem}
}

// Truncate empties the file, so every later access faults.
func (m *memory) Truncate() {
	if err := unix.Ftruncate(m.fd, 0); err != nil {
		panic(err)
	}
}

func (m *memory) close() {
	if m.bytes != nil {
		unix.Munmap(m.bytes)
		unix.Close(m.fd)
		m.bytes = nil
	}
}

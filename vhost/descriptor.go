// SPDX-License-Identifier: Apache-2.0

package vhost

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// Checks of the descriptors that a front end may send. A file system in user space
// decides how long stat, a page fault and even close take. Each descriptor is
// therefore checked before any other system call on it.

// checkShared refuses a descriptor that is not tmpfs, memfd or hugetlbfs. Any other
// file system may delay a page fault of the worker for as long as it likes.
//
// The order of the checks matters. F_GETFL and F_GET_SEALS do not call the file
// system (fcntl(2); only shmem and hugetlbfs have seals). fstatfs and fstat may call
// it, so they come last.
func checkShared(fd int) error {
	flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFL, 0)
	if err != nil {
		return fmt.Errorf("descriptor: %w", err)
	}
	seals, err := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0)
	if err != nil {
		return notShared(fd)
	}
	var fs unix.Statfs_t
	if err := unix.Fstatfs(fd, &fs); err != nil {
		return fmt.Errorf("file system: %w", err)
	}
	if fs.Type != unix.TMPFS_MAGIC && fs.Type != unix.HUGETLBFS_MAGIC {
		// not shared memory, for example a tmpfs file that was opened through an
		// overlay
		return notShared(fd)
	}
	switch {
	case flags&unix.O_ACCMODE != unix.O_RDWR:
		return fmt.Errorf("%q is not open for reading and writing", nameOf(fd))
	case seals&(unix.F_SEAL_WRITE|unix.F_SEAL_FUTURE_WRITE) != 0:
		return fmt.Errorf("%q is sealed against writing", nameOf(fd))
	}
	return nil
}

func notShared(fd int) error {
	return fmt.Errorf("%q is no shared memory: expected a file of memfd, tmpfs or hugetlbfs (QEMU: memory-backend-memfd with share=on)", nameOf(fd))
}

// nameOf returns the name of a descriptor's file for error texts. The name may be
// misleading.
func nameOf(fd int) string {
	name, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", fd))
	if err != nil {
		return fmt.Sprintf("descriptor %d", fd)
	}
	return name
}

// checkChannel refuses a descriptor that is not a unix stream socket.
func checkChannel(fd int) error {
	domain, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_DOMAIN)
	if err != nil {
		return fmt.Errorf("%q is no socket, expected a unix stream socket", nameOf(fd))
	}
	kind, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_TYPE)
	if err != nil || domain != unix.AF_UNIX || kind != unix.SOCK_STREAM {
		return fmt.Errorf("socket of domain %d and type %d, expected a unix stream socket", domain, kind)
	}
	return nil
}

// SPDX-License-Identifier: Apache-2.0

package vhost

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// Checks of the kinds of descriptors that a front end may send. The check comes
// before any other system call on a descriptor, and a descriptor of a wrong kind is
// refused. A file system in user space decides how long stat, a page fault and even
// close take. A TCP socket with SO_LINGER delays its close until its peer has read
// the data.

// checkShared refuses a descriptor that is not shared memory made by the kernel
// itself. The kernel fills the pages of tmpfs, memfd and hugetlbfs from memory. Any
// other file system may take as long as it likes to provide a page, and the worker
// that accesses the page would wait.
//
// The order of the checks matters. The kernel answers F_GETFL and F_GET_SEALS without
// a call to the file system (fcntl(2); mm/memfd.c: only shmem and hugetlbfs have
// seals). fstatfs and fstat may call the file system, so they come last.
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
		return notShared(fd) // not shared memory: for example a tmpfs file opened through an overlay
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

// nameOf returns the kernel's name of a descriptor's file, for error texts only.
// Whoever mounted the file system can choose a misleading name.
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

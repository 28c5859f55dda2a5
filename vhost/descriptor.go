package vhost

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// What a front end may hand over, by kind. A descriptor of another kind is refused
// before anything else is done with it: a file system in user space decides how long
// stat, a page fault and even close take, and a TCP socket that lingers how long its
// close takes.

// checkShared refuses what is not shared memory of the kernel's own making. Pages of
// tmpfs, memfd and hugetlbfs come from memory; those of any other file system come
// when it likes, and the worker that touches one waits.
//
// The order of the questions matters. F_GETFL and F_GET_SEALS are answered by the
// kernel without asking the file system (fcntl(2), mm/memfd.c: only shmem and
// hugetlbfs have seals); fstatfs and fstat come only then.
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
		return notShared(fd) // a file of tmpfs below an overlay, for one
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

// nameOf is what the kernel calls the file, for an error's text. A path may be a lie
// of whoever mounted it.
func nameOf(fd int) string {
	name, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", fd))
	if err != nil {
		return fmt.Sprintf("descriptor %d", fd)
	}
	return name
}

// checkChannel refuses what is no connected unix stream socket.
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

// SPDX-License-Identifier: Apache-2.0

package xsk

import (
	"errors"
	"fmt"
	"strings"

	"golang.org/x/sys/unix"
)

// Refusal is the reason why Setup could not use one of the modes of AF_XDP.
type Refusal struct {
	Mode   string `json:"mode"`
	Reason string `json:"reason"` // one line with the reason and, if known, the remedy
}

// refusedError is the error of Setup if no mode of AF_XDP could be used.
type refusedError struct {
	Dev      string
	Refusals []Refusal
}

// Error returns one line with the reasons of all modes, each reason once.
func (e *refusedError) Error() string {
	var parts []string
	for i := 0; i < len(e.Refusals); {
		modes := e.Refusals[i].Mode
		j := i + 1
		for ; j < len(e.Refusals) && e.Refusals[j].Reason == e.Refusals[i].Reason; j++ {
			modes += ", " + e.Refusals[j].Mode
		}
		parts = append(parts, modes+": "+e.Refusals[i].Reason)
		i = j
	}
	return fmt.Sprintf("af_xdp on %s: %s", e.Dev, strings.Join(parts, "; "))
}

// step is a step of Setup that can fail. The text of an error depends on it.
type step int

const (
	stepSocket step = iota // making the socket, socket(AF_XDP)
	stepMemory             // registering the UMEM, XDP_UMEM_REG
	stepRings              // setting ring sizes, XDP_MMAP_OFFSETS
	stepLoad               // loading the XDP program and its maps
	stepAttach             // attaching the program by a bpf_link
	stepBind
	stepMap // putting the socket into the XSKMAP
)

// explain returns an error that says why a step of Setup has failed, and what to do about it. n is the
// device, and err the error of the kernel.
func explain(failed step, mode string, n *netdev, queue int, err error) error {
	var words string
	var errno unix.Errno
	if errors.As(err, &errno) {
		words = explainDriver(failed, mode, n, errno)
	}
	switch is := func(e ...unix.Errno) bool { return isAny(err, e) }; {
	case words != "":
	case n.pieces() && (failed == stepLoad && is(unix.EINVAL) || failed == stepBind && is(unix.EINVAL, unix.EOPNOTSUPP)):
		words = fmt.Sprintf("an MTU of %d needs frames in several buffers, which the kernel (before Linux 6.6) or driver %s does not support in this mode: ip link set dev %s mtu %d",
			n.mtu, n.driver, n.name, maxMTU(n.frame))
	case failed == stepSocket && is(unix.EPERM, unix.EACCES):
		words = "missing privilege: AF_XDP sockets need CAP_NET_RAW"
	case failed == stepSocket && is(unix.EAFNOSUPPORT):
		words = "the kernel has no AF_XDP sockets (CONFIG_XDP_SOCKETS, Linux 5.10 or later)"
	case failed == stepMemory && is(unix.ENOBUFS, unix.ENOMEM, unix.EPERM):
		words = "the UMEM could not be locked in memory: raise `ulimit -l`, give CAP_IPC_LOCK, or ask for smaller rings"
	case failed == stepRings && is(unix.EOPNOTSUPP, unix.ENOPROTOOPT, unix.EINVAL):
		words = "the kernel is too old: need_wakeup and shared UMEM need Linux 5.10 or later"
	case failed == stepLoad && is(unix.EPERM, unix.EACCES):
		words = "missing privilege: loading an XDP program needs CAP_BPF and CAP_NET_ADMIN"
	case failed == stepAttach && is(unix.EPERM, unix.EACCES):
		words = "missing privilege: attaching an XDP program needs CAP_NET_ADMIN"
	case failed == stepAttach && is(unix.EBUSY, unix.EEXIST):
		words = fmt.Sprintf("another XDP program is attached to %s: detach it first (ip link set dev %s xdp off)", n.name, n.name)
	case failed == stepAttach && is(unix.EOPNOTSUPP):
		words = fmt.Sprintf("driver %s runs no XDP programs", n.driver)
	case failed == stepAttach && is(unix.ERANGE):
		words = fmt.Sprintf("driver %s runs no XDP program with this MTU: lower the MTU of %s, and of its peer if it is a veth", n.driver, n.name)
	case failed == stepAttach && is(unix.ENOSPC):
		words = fmt.Sprintf("too few queues on %s for XDP: a veth needs as many receive queues as its peer has transmit queues (ethtool -L)", n.name)
	case failed == stepAttach && is(unix.EINVAL):
		words = fmt.Sprintf("driver %s refused the XDP program: often the MTU (%d), too few queues for the number of CPUs, or receive coalescing (ethtool -K %s lro off)", n.driver, n.mtu, n.name)
	case failed == stepBind && is(unix.EOPNOTSUPP) && mode == ModeZeroCopy:
		words = fmt.Sprintf("driver %s has no AF_XDP zero-copy, or not with this configuration of %s", n.driver, n.name)
	case failed == stepBind && is(unix.EBUSY):
		words = fmt.Sprintf("queue %d of %s has an AF_XDP socket already: another process uses it", queue, n.name)
	case failed == stepBind && is(unix.EINVAL) && mode == ModeZeroCopy:
		words = fmt.Sprintf("driver %s refused zero-copy on queue %d: often the MTU (%d), or the frame or ring size", n.driver, queue, n.mtu)
	case is(unix.ENODEV, unix.ENXIO):
		words = fmt.Sprintf("device %s is gone", n.name)
	case is(unix.ENOMEM, unix.ENOBUFS):
		words = "out of memory"
	default:
		return fmt.Errorf("%s: %w", failed.words(queue), err)
	}
	return fmt.Errorf("%s (%w)", words, errnoOf(err))
}

func (s step) words(queue int) string {
	return [...]string{
		"open an AF_XDP socket", "register the UMEM", "make the rings", "load the XDP program", "attach the XDP program",
		fmt.Sprintf("bind to queue %d", queue), fmt.Sprintf("put the socket of queue %d into the XSKMAP", queue),
	}[s]
}

func isAny(err error, errnos []unix.Errno) bool {
	for _, e := range errnos {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// errnoOf returns the errno that err wraps. It drops the rest, because an error of the
// BPF verifier has many lines.
func errnoOf(err error) error {
	var errno unix.Errno
	if errors.As(err, &errno) {
		return errno
	}
	return err
}

// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package sandbox

import (
	"github.com/elastic/go-seccomp-bpf"
	"golang.org/x/sys/unix"
)

// Weft uses no cgo. But a build with CGO_ENABLED=1, which the race detector needs, links the C
// library, which then starts the threads.

// libcCalls are the system calls that only the C library and the race detector need.
var libcCalls = []string{"brk", "mremap", "rseq", "set_robust_list", "sched_getscheduler", "sched_getparam"}

// libcConditional are system calls of the C library, each with the condition that its arguments must
// meet.
var libcConditional = []seccomp.NameWithConditions{
	provided("mprotect", argument(2, seccomp.BitsNotSet, unix.PROT_EXEC)),
	provided("clone", argument(0, seccomp.Equal, goThread|unix.CLONE_SETTLS|unix.CLONE_PARENT_SETTID|unix.CLONE_CHILD_CLEARTID)),
}

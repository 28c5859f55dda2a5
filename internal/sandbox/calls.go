// SPDX-License-Identifier: Apache-2.0

package sandbox

import (
	"os"
	"slices"

	"github.com/elastic/go-seccomp-bpf"
	"github.com/elastic/go-seccomp-bpf/arch"
	"golang.org/x/sys/unix"
)

// allowed has the system calls that the engine may make with any arguments. The kernel does not run
// the filter for them (Linux 5.11), so the filter costs a worker nothing. Names that the architecture
// does not have are ignored. No call in the list takes a path.
var allowed = []string{
	// the Go runtime
	"futex", "nanosleep", "clock_gettime", "sched_yield", "getpid", "gettid", "getrandom",
	"munmap", "madvise", "rt_sigaction", "rt_sigprocmask", "rt_sigreturn", "sigaltstack",
	"restart_syscall", "getrusage", "sched_getaffinity", "sched_getattr", "getpriority", "exit", "exit_group",
	"pread64", // the runtime opened the file with the cgroup's CPU limit at its start, and reads it again
	// descriptors
	"read", "write", "readv", "writev", "close", "fstat", "fstatfs", "ftruncate", "lseek", "flock",
	"memfd_create", "eventfd2", "epoll_create1", "epoll_ctl", "epoll_wait", "epoll_pwait", "poll", "ppoll",
	// for messages of the control process and sockets of ports; no call in the list makes, connects or
	// binds a socket
	"accept4", "recvmsg", "sendmsg", "sendmmsg", "recvfrom", "sendto", "getsockopt", "getsockname", "getpeername", "shutdown",
	// for wake-ups of front ends, see shm.Foreign
	"io_setup", "io_submit",
}

// conditional returns the system calls that the engine may make only with some arguments, each with
// its condition.
func conditional() []seccomp.NameWithConditions {
	self := uint64(os.Getpid())
	calls := []seccomp.NameWithConditions{
		provided("mmap", argument(2, seccomp.BitsNotSet, unix.PROT_EXEC)),
		// Threads, but no processes.
		provided("clone", argument(0, seccomp.Equal, goThread)),
		provided("clone", argument(0, seccomp.Equal, goThread|unix.CLONE_SETTLS)), // amd64
		// The engine may signal its own threads only. The kernel alone would allow
		// these calls for any process of the same user.
		provided("tgkill", argument(0, seccomp.Equal, self)),
		provided("kill", argument(0, seccomp.Equal, self)),
		provided("sched_setaffinity", argument(0, seccomp.Equal, 0)),
		provided("sched_setattr", argument(0, seccomp.Equal, 0)),
		// The Go runtime names its memory mappings with this call.
		provided("prctl", argument(0, seccomp.Equal, unix.PR_SET_VMA)),
	}
	// F_SETOWN and F_SETSIG are not in the list, because they make the kernel send
	// signals to other processes.
	for _, command := range []uint64{unix.F_DUPFD_CLOEXEC, unix.F_GETFD, unix.F_SETFD, unix.F_GETFL, unix.F_SETFL,
		unix.F_GET_SEALS, unix.F_ADD_SEALS} {
		calls = append(calls, provided("fcntl", argument(1, seccomp.Equal, command)))
	}
	return append(calls, libcConditional...)
}

// goThread has the clone flags with which the Go runtime starts a thread (runtime/os_linux.go,
// cloneFlags).
const goThread = unix.CLONE_VM | unix.CLONE_FS | unix.CLONE_FILES | unix.CLONE_SIGHAND | unix.CLONE_SYSVSEM | unix.CLONE_THREAD

// absent is the filter's action that makes a system call return ENOSYS.
const absent = seccomp.ActionErrno | seccomp.Action(unix.ENOSYS)

func provided(name string, conditions ...seccomp.Condition) seccomp.NameWithConditions {
	return seccomp.NameWithConditions{Name: name, Conditions: conditions}
}

func argument(n uint32, operation seccomp.Operation, value uint64) seccomp.Condition {
	return seccomp.Condition{Argument: n, Operation: operation, Value: value}
}

// policy returns the rules of the system call filter for this architecture.
func policy() (seccomp.Policy, error) {
	machine, err := arch.GetInfo("")
	if err != nil {
		return seccomp.Policy{}, err
	}
	known := slices.DeleteFunc(slices.Concat(allowed, libcCalls), func(name string) bool {
		_, ok := machine.SyscallNames[name]
		return !ok
	})
	return seccomp.Policy{
		DefaultAction: seccomp.ActionErrno,
		Syscalls: []seccomp.SyscallGroup{
			{Action: seccomp.ActionAllow, Names: known, NamesWithCondtions: conditional()},
			// The flags of clone3 are in memory, which a filter cannot read. The C
			// library calls clone if clone3 is missing.
			{Action: absent, Names: []string{"clone3"}},
		},
	}, nil
}

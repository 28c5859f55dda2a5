// SPDX-License-Identifier: Apache-2.0

package sandbox

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// takenOver is an argument of the test binary. With it, the binary runs as a process that a guest has
// taken over. The further arguments are a mode, a directory and the id of a victim process. The
// process makes every attempt and prints each result.
const takenOver = "taken-over"

func TestMain(m *testing.M) {
	if len(os.Args) == 5 && os.Args[1] == takenOver {
		victim, _ := strconv.Atoi(os.Args[4])
		os.Exit(attack(os.Args[2], os.Args[3], victim))
	}
	os.Exit(m.Run())
}

// enter has a function for each mode, which restricts the process as the mode says.
var enter = map[string]func() error{
	"free":    func() error { return nil },
	"sandbox": Enter,
	// The other restrictions must hold without the filter of system calls.
	"no filter": func() error { return errors.Join(dropCapabilities(), restrictFiles()) },
}

func attack(mode, dir string, victim int) int {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err == nil {
		err = enter[mode]()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	w := world{dir: dir, victim: victim, socket: pair[0]}
	for _, a := range attempts {
		errno := unix.Errno(0)
		if err := a.try(&w); err != nil && !errors.As(err, &errno) {
			errno = unix.EINVAL // something else than a refusal
		}
		fmt.Printf("%s\t%d\n", a.name, errno)
	}
	return 0
}

// world has the resources that an attempt uses.
type world struct {
	dir    string // directory with the file secret and the listening socket control
	victim int    // process id of another process of the same user
	socket int    // a descriptor that the process holds
}

// attempt is one action that an engine might try when a guest has taken it over. Root succeeds with
// it.
type attempt struct {
	name string
	// byFilter is true if nothing but the filter of system calls refuses the attempt.
	byFilter bool
	try      func(w *world) error
}

func call(trap uintptr, args ...uintptr) error {
	var a [6]uintptr
	copy(a[:], args)
	if _, _, errno := unix.Syscall6(trap, a[0], a[1], a[2], a[3], a[4], a[5]); errno != 0 {
		return errno
	}
	return nil
}

// opened closes the descriptor fd if the call that opened it succeeded.
func opened(fd int, err error) error {
	if err == nil {
		unix.Close(fd)
	}
	return err
}

var attempts = []attempt{
	{"open a file", false, func(w *world) error {
		return opened(unix.Open(filepath.Join(w.dir, "secret"), unix.O_RDONLY|unix.O_CLOEXEC, 0))
	}},
	{"open a directory", false, func(w *world) error {
		return opened(unix.Open("/", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0))
	}},
	{"create a file", false, func(w *world) error {
		return opened(unix.Open(filepath.Join(w.dir, "new"), unix.O_CREAT|unix.O_WRONLY|unix.O_CLOEXEC, 0o600))
	}},
	{"remove a file", false, func(w *world) error { return unix.Unlink(filepath.Join(w.dir, "secret")) }},
	{"read a link", true, func(w *world) error { _, err := unix.Readlink("/proc/self/exe", make([]byte, 64)); return err }},
	{"connect to control", true, func(w *world) error {
		fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		return unix.Connect(fd, &unix.SockaddrUnix{Name: filepath.Join(w.dir, "control")})
	}},
	{"make a socket", true, func(w *world) error { return opened(unix.Socket(unix.AF_INET, unix.SOCK_DGRAM, 0)) }},
	{"make a packet socket", false, func(w *world) error { return opened(unix.Socket(unix.AF_PACKET, unix.SOCK_RAW, 0)) }},
	{"execute a program", false, func(w *world) error { return exec.Command("/bin/true").Run() }},
	{"map executable memory", true, func(w *world) error {
		_, err := unix.Mmap(-1, 0, 4096, unix.PROT_READ|unix.PROT_WRITE|unix.PROT_EXEC, unix.MAP_PRIVATE|unix.MAP_ANON)
		return err
	}},
	{"trace a process", false, func(w *world) error { return call(unix.SYS_PTRACE, unix.PTRACE_SEIZE, uintptr(w.victim), 0, 0) }},
	{"read a process's memory", true, func(w *world) error {
		// The vectors are empty, so the kernel needs no permission for the memory.
		var local, foreign [1]unix.Iovec
		_, _, errno := unix.Syscall6(unix.SYS_PROCESS_VM_READV, uintptr(w.victim), uintptr(unsafe.Pointer(&local)), 1, uintptr(unsafe.Pointer(&foreign)), 1, 0)
		if errno != 0 {
			return errno
		}
		return nil
	}},
	{"kill control", false, func(w *world) error { return unix.Kill(w.victim, unix.SIGCONT) }},
	{"kill a thread of control", false, func(w *world) error {
		return call(unix.SYS_TGKILL, uintptr(w.victim), uintptr(w.victim), uintptr(unix.SIGCONT))
	}},
	{"kill control through a socket's owner", true, func(w *world) error {
		_, err := unix.FcntlInt(uintptr(w.socket), unix.F_SETOWN, w.victim)
		return err
	}},
	{"pidfd of control", true, func(w *world) error { return opened(unix.PidfdOpen(w.victim, 0)) }},
	{"move control to another core", false, func(w *world) error {
		var set unix.CPUSet
		if err := unix.SchedGetaffinity(0, &set); err != nil {
			return err
		}
		return unix.SchedSetaffinity(w.victim, &set)
	}},
	{"limit control", true, func(w *world) error {
		var limit unix.Rlimit
		return unix.Prlimit(w.victim, unix.RLIMIT_NOFILE, nil, &limit)
	}},
	{"renice control", false, func(w *world) error { return unix.Setpriority(unix.PRIO_PROCESS, w.victim, -1) }},
	{"load BPF", false, func(w *world) error {
		attr := [16]uint32{1, 4, 4, 1} // a hash table of one entry
		fd, _, errno := unix.Syscall(unix.SYS_BPF, unix.BPF_MAP_CREATE, uintptr(unsafe.Pointer(&attr)), unsafe.Sizeof(attr))
		if errno != 0 {
			return errno
		}
		return opened(int(fd), nil)
	}},
	{"new namespace", false, func(w *world) error { return unix.Unshare(unix.CLONE_NEWUTS) }},
	{"mount", false, func(w *world) error {
		if err := unix.Mount("none", w.dir, "tmpfs", 0, ""); err != nil {
			return err
		}
		return unix.Unmount(w.dir, 0)
	}},
	{"change the root", false, func(w *world) error { return unix.Chroot("/") }},
	{"become another user", true, func(w *world) error { return unix.Setresuid(-1, -1, -1) }},
}

// outcomes makes all attempts in a mode. It returns the error number of each.
func outcomes(t *testing.T, mode string) map[string]unix.Errno {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "secret"), []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	listening, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(listening)
	if err := errors.Join(unix.Bind(listening, &unix.SockaddrUnix{Name: filepath.Join(dir, "control")}), unix.Listen(listening, 1)); err != nil {
		t.Fatal(err)
	}
	victim := exec.Command("sleep", "600")
	if err := victim.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = victim.Process.Kill(); _ = victim.Wait() }()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	var errs bytes.Buffer
	cmd := exec.Command(exe, takenOver, mode, dir, strconv.Itoa(victim.Process.Pid))
	cmd.Env, cmd.Stderr = append(os.Environ(), "GODEBUG=asyncpreemptoff=1"), &errs
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s: %v\n%s", mode, err, errs.Bytes())
	}
	got := map[string]unix.Errno{}
	for line := range strings.Lines(string(out)) {
		name, number, _ := strings.Cut(strings.TrimSpace(line), "\t")
		n, err := strconv.Atoi(number)
		if err != nil {
			t.Fatalf("%s: %q", mode, line)
		}
		got[name] = unix.Errno(n)
	}
	return got
}

// In the sandbox, every attempt is refused. Without a sandbox, every attempt succeeds, so the refusals
// come from the sandbox.
func TestTakenOver(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: the attempts must succeed outside of the sandbox")
	}
	free, sandbox := outcomes(t, "free"), outcomes(t, "sandbox")
	for _, a := range attempts {
		if errno, tried := free[a.name]; !tried || errno != 0 {
			t.Errorf("%s, outside of the sandbox: %v", a.name, errno)
		}
		if errno, tried := sandbox[a.name]; !tried || errno != unix.EPERM {
			t.Errorf("%s: %v, want %v", a.name, errno, unix.EPERM)
		}
	}
}

// Even without the filter of system calls, the other restrictions refuse most attempts.
func TestTakenOverWithoutFilter(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: the attempts must succeed outside of the sandbox")
	}
	abi, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, 0, 0, unix.LANDLOCK_CREATE_RULESET_VERSION)
	if errno != 0 || abi < 6 {
		t.Skipf("the kernel's Landlock has version %d (%v), the test needs 6", int(abi), errno)
	}
	got := outcomes(t, "no filter")
	for _, a := range attempts {
		if errno, tried := got[a.name]; !tried || (errno == unix.EPERM || errno == unix.EACCES) == a.byFilter {
			t.Errorf("%s: %v, refused by the filter alone: %v", a.name, errno, a.byFilter)
		}
	}
}

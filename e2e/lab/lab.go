// SPDX-License-Identifier: Apache-2.0

// Package lab sets up hosts, guests and virtual machines for the end-to-end tests and
// the demonstration, and removes them again. Hosts and guests are network namespaces,
// cables are veth pairs, and virtual machines run in QEMU.
//
// A Lab owns everything that its methods create, and Close removes all of it. Names
// of namespaces and files contain the process id of the program, so that the next run
// can find and remove what a killed run has left. If a step of the setup fails, the
// Reporter ends the test. If a test expects a step to fail, it uses the step's Try
// form, which returns an error.
package lab

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
)

// Reporter is the part of testing.TB that a lab needs. Fatalf does not return.
type Reporter interface {
	Helper()
	Fatalf(format string, args ...any)
	Logf(format string, args ...any)
}

// Program is a Reporter for programs that are not tests. A failure becomes the error
// of the function that defers Caught.
type Program struct {
	Log func(format string, args ...any) // nil: log nothing
}

// failure is the panic value of Program.Fatalf.
type failure string

// Helper does nothing.
func (Program) Helper() {}

// Fatalf panics with the message. Caught recovers the panic.
func (Program) Fatalf(format string, args ...any) { panic(failure(fmt.Sprintf(format, args...))) }

// Logf calls Log, if set.
func (p Program) Logf(format string, args ...any) {
	if p.Log != nil {
		p.Log(format, args...)
	}
}

// Caught recovers a panic of Program.Fatalf and stores the message as the error of
// the function that defers Caught. It closes all labs, and continues any other panic.
func Caught(err *error) {
	switch f := recover().(type) {
	case nil:
	case failure:
		*err = errors.New(string(f))
	default:
		CloseAll()
		panic(f)
	}
}

// Lab is a set of hosts, guests and virtual machines. Only one goroutine may call its
// methods. Close is an exception: any goroutine may call it.
type Lab struct {
	T   Reporter
	Dir string // scratch directory with a path short enough for unix sockets

	prefix string // prefix of the namespaces' names

	mu      sync.Mutex
	closed  bool
	hosts   []*Host
	daemons []*Daemon
	undo    []func()
}

// labs has the open labs, which CloseAll closes.
var (
	labs      = map[*Lab]bool{}
	labsMu    sync.Mutex
	labCount  int
	sweepOnce sync.Once
)

// New returns an empty lab. The process needs to run as root.
func New(t Reporter) *Lab {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Fatalf("lab: network namespaces need root")
	}
	sweepOnce.Do(sweep)
	labsMu.Lock()
	defer labsMu.Unlock()
	labCount++
	l := &Lab{T: t, prefix: fmt.Sprintf("weft%d-%d", os.Getpid(), labCount)}
	l.Dir = filepath.Join(os.TempDir(), l.prefix)
	if err := os.Mkdir(l.Dir, 0o755); err != nil {
		t.Fatalf("lab: %v", err)
	}
	labs[l] = true
	return l
}

// Close ends all processes of the lab and removes its namespaces and files. It first
// asks the daemons to end, so that they can clean up themselves.
func (l *Lab) Close() {
	l.mu.Lock()
	if l.closed {
		l.mu.Unlock()
		return
	}
	l.closed = true
	daemons, hosts, undo := l.daemons, l.hosts, l.undo
	l.mu.Unlock()

	for _, d := range daemons {
		d.terminate()
	}
	for _, f := range slices.Backward(undo) {
		f()
	}
	for _, h := range hosts {
		removeNamespace(h.NS)
	}
	os.RemoveAll(l.Dir)
	labsMu.Lock()
	delete(labs, l)
	labsMu.Unlock()
}

// Main is the body of a test package's TestMain and does not return. It runs the
// tests. At the end or at an interrupt, it closes all labs.
func Main(tests interface{ Run() int }) {
	interrupts := make(chan os.Signal, 1)
	signal.Notify(interrupts, os.Interrupt, syscall.SIGTERM)
	go func() {
		<-interrupts
		CloseAll()
		os.Exit(130)
	}()
	code := tests.Run()
	CloseAll()
	os.Exit(code)
}

// CloseAll closes all open labs and removes the programs that were built for them.
// Programs call it at their end and on signals.
func CloseAll() {
	labsMu.Lock()
	open := make([]*Lab, 0, len(labs))
	for l := range labs {
		open = append(open, l)
	}
	labsMu.Unlock()
	for _, l := range open {
		l.Close()
	}
	os.RemoveAll(binDir())
}

// cleanup registers f for Close, which calls the last registered function first. If
// the lab is closed, cleanup returns false and does not register f.
func (l *Lab) cleanup(f func()) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.closed {
		l.undo = append(l.undo, f)
	}
	return !l.closed
}

// run runs a command of the setup. If the command fails, the test ends.
func (l *Lab) run(args ...string) string {
	l.T.Helper()
	out, err := exec.Command(args[0], args[1:]...).CombinedOutput()
	if err != nil {
		l.T.Fatalf("lab: %s: %v: %s", strings.Join(args, " "), err, out)
	}
	return string(out)
}

// leftoverName matches the names of a lab's namespaces and files. The number in a
// name is the process id of the program that created the lab.
var leftoverName = regexp.MustCompile(`^weft([0-9]+)-`)

// sweep removes the namespaces and files of labs whose program no longer runs.
func sweep() {
	for _, dir := range []string{"/run/netns", os.TempDir()} {
		entries, _ := os.ReadDir(dir)
		for _, e := range entries {
			m := leftoverName.FindStringSubmatch(e.Name())
			if m == nil {
				continue
			}
			if pid, err := strconv.Atoi(m[1]); err != nil || syscall.Kill(pid, 0) != syscall.ESRCH {
				continue
			}
			if dir == "/run/netns" {
				removeNamespace(e.Name())
			} else {
				os.RemoveAll(filepath.Join(dir, e.Name()))
			}
		}
	}
}

// removeNamespace kills the processes in a lab's network namespace and deletes the
// namespace. Only a lab has processes in its namespaces.
func removeNamespace(ns string) {
	for _, pid := range namespacePIDs(ns) {
		syscall.Kill(pid, syscall.SIGKILL)
	}
	exec.Command("ip", "netns", "delete", ns).Run()
}

// namespacePIDs returns the ids of the processes in a network namespace. It leaves
// out this process, which may have a thread in the namespace because of Host.Do.
func namespacePIDs(ns string) []int {
	out, _ := exec.Command("ip", "netns", "pids", ns).Output()
	var pids []int
	for _, word := range strings.Fields(string(out)) {
		if pid, err := strconv.Atoi(word); err == nil && pid != os.Getpid() {
			pids = append(pids, pid)
		}
	}
	return pids
}

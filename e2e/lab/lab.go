// SPDX-License-Identifier: Apache-2.0

// Package lab sets up hosts, guests and virtual machines for the end-to-end tests and
// the demonstration, and removes them again. Hosts and guests are network namespaces,
// cables are veth pairs, the machines are QEMU.
//
// A Lab owns everything that it makes, and Close removes it. Names contain the
// process id of the maker, so that the next run finds and removes the leftovers of a
// killed one. A failing step of the set-up ends the test through Reporter. Methods
// for steps that a test expects to fail have a Try form that returns an error.
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

// Program is a Reporter for programs that are no tests. A failure becomes the error
// of the function that defers Caught.
type Program struct {
	Log func(format string, args ...any) // nil: log nothing
}

// failure is the value of Fatalf's panic.
type failure string

// Helper does nothing.
func (Program) Helper() {}

// Fatalf panics with the message; Caught recovers it.
func (Program) Fatalf(format string, args ...any) { panic(failure(fmt.Sprintf(format, args...))) }

// Logf calls Log, if set.
func (p Program) Logf(format string, args ...any) {
	if p.Log != nil {
		p.Log(format, args...)
	}
}

// Caught turns the panic of Program.Fatalf into the error of the function that defers
// Caught. It closes all layouts and continues any other panic.
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

// Lab is one layout. One goroutine may call its methods; any goroutine may call
// Close.
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

// labs has the open layouts, for CloseAll.
var (
	labs      = map[*Lab]bool{}
	labsMu    sync.Mutex
	labCount  int
	sweepOnce sync.Once
)

// New makes an empty layout. It needs root.
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

// Close ends every process of the layout and removes its namespaces and files. It
// asks the daemons to end first, so that they clean up themselves.
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

// Main is the body of a test package's TestMain. It runs the tests, closes every
// layout at the end or at an interrupt, and does not return.
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

// CloseAll closes every open layout and removes the built programs. Call it at the
// end of the process and on signals.
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

// cleanup registers f for Close, which calls the latest function first. If the lab is
// closed, cleanup does not register f and returns false.
func (l *Lab) cleanup(f func()) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.closed {
		l.undo = append(l.undo, f)
	}
	return !l.closed
}

// run runs a command of the set-up. A failure of the command ends the test.
func (l *Lab) run(args ...string) string {
	l.T.Helper()
	out, err := exec.Command(args[0], args[1:]...).CombinedOutput()
	if err != nil {
		l.T.Fatalf("lab: %s: %v: %s", strings.Join(args, " "), err, out)
	}
	return string(out)
}

// leftoverName matches the names of a lab's namespaces and files. They contain the
// process id of the maker.
var leftoverName = regexp.MustCompile(`^weft([0-9]+)-`)

// sweep removes the leftovers of labs of dead processes.
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

// removeNamespace ends the processes in a namespace of a lab and deletes it. Only
// labs have processes there.
func removeNamespace(ns string) {
	for _, pid := range namespacePIDs(ns) {
		syscall.Kill(pid, syscall.SIGKILL)
	}
	exec.Command("ip", "netns", "delete", ns).Run()
}

// namespacePIDs returns the processes in a namespace except this process, one of
// whose threads may be there in Do.
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

// SPDX-License-Identifier: Apache-2.0

// Package lab sets up hosts, guests and virtual machines for the end-to-end tests and the
// demonstration. Hosts and guests are network namespaces, cables are veth pairs, and virtual machines
// run in QEMU.
//
// Close removes everything that a Lab has created. If the program is killed before, a second process,
// the guard, or a later program removes it. They find it by the process id of the program, which is
// part of the names.
//
// A method that fails ends the test through the Reporter. A method whose name begins with Try returns
// an error instead.
package lab

import (
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
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

// Program is a Reporter for programs that are not tests. A failure panics; Caught turns the
// panic into an error.
type Program struct {
	Log func(format string, args ...any) // nil: log nothing
}

type failure struct{ error }

// Helper does nothing; a Program has no test whose lines it could mark.
func (Program) Helper() {}

// Fatalf panics with the message. Caught recovers from this panic.
func (Program) Fatalf(format string, args ...any) { panic(failure{fmt.Errorf(format, args...)}) }

// Check panics unless err is nil. Caught and Attempt turn the panic into an error.
func Check(err error) {
	if err != nil {
		panic(failure{err})
	}
}

// Must returns v. It panics as Check does if err is not nil.
func Must[T any](v T, err error) T {
	Check(err)
	return v
}

// Attempt calls f. If f panics by Check, Must or Program.Fatalf, Attempt returns the error.
func Attempt(f func()) (err error) {
	defer Caught(&err)
	f()
	return nil
}

// Logf calls Log, if set.
func (p Program) Logf(format string, args ...any) {
	if p.Log != nil {
		p.Log(format, args...)
	}
}

// Caught recovers from the panic of Program.Fatalf, Check or Must, and stores the error in err. At any other
// panic it closes all labs. Callers defer it.
func Caught(err *error) {
	switch f := recover().(type) {
	case nil:
	case failure:
		*err = f.error
	default:
		CloseAll()
		panic(f)
	}
}

// Lab is a set of hosts, guests and virtual machines. One goroutine calls its methods,
// but any goroutine may call Close.
type Lab struct {
	T Reporter
	// Dir is the directory for temporary files. Its path is short, because the paths of unix
	// sockets in it must be short.
	Dir string

	prefix string // prefix of the namespaces' names

	mu      sync.Mutex
	closed  bool
	hosts   []*Host
	daemons []*Daemon
	undo    []func()
}

var (
	labs      = map[*Lab]bool{}
	labsMu    sync.Mutex
	labCount  int
	sweepOnce sync.Once
)

// New returns an empty lab. The process must run as root.
func New(t Reporter) *Lab {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Fatalf("lab: network namespaces need root")
	}
	Guard()
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

// Close ends the daemons in order, and then all other processes. It removes namespaces
// and files.
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

// Main is the body of TestMain. It runs the tests, closes all labs and ends the process with
// the tests' exit code. An interrupt also closes all labs.
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

// CloseAll closes all labs and removes the programs built for them.
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

// cleanup registers a function for Close, which calls the last registered function first.
// cleanup returns false if the lab is already closed.
func (l *Lab) cleanup(f func()) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.closed {
		l.undo = append(l.undo, f)
	}
	return !l.closed
}

func (l *Lab) run(args ...string) string {
	l.T.Helper()
	out, err := exec.Command(args[0], args[1:]...).CombinedOutput()
	if err != nil {
		l.T.Fatalf("lab: %s: %v: %s", strings.Join(args, " "), err, out)
	}
	return string(out)
}

// Package lab lays out hosts, guests and virtual machines for the end-to-end
// tests and the demonstration, and takes them away again: hosts and guests are
// network namespaces, cables are veth pairs, the machines are QEMU.
//
// A Lab owns all that it made, and Close removes it. Names carry the process id
// of their maker, so that what a killed run left behind is found and removed by
// the next one. A step of set-up that fails ends the test through Reporter;
// what a test wants to see fail has a Try form that returns an error.
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

// Program is the Reporter of what is no test: what would end a test becomes the error
// of the function that has deferred Caught.
type Program struct {
	Log func(format string, args ...any) // nil: nothing is logged
}

// failure is what Fatalf panics with.
type failure string

// Helper does nothing.
func (Program) Helper() {}

// Fatalf panics.
func (Program) Fatalf(format string, args ...any) { panic(failure(fmt.Sprintf(format, args...))) }

// Logf logs.
func (p Program) Logf(format string, args ...any) {
	if p.Log != nil {
		p.Log(format, args...)
	}
}

// Caught makes what Program.Fatalf has said the error of the function that defers it.
// Any other panic goes on, with all layouts closed.
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

// Lab is one layout. Its methods are for one goroutine, Close for any.
type Lab struct {
	T   Reporter
	Dir string // scratch folder, short enough for the paths of unix sockets

	prefix string // of namespaces

	mu      sync.Mutex
	closed  bool
	hosts   []*Host
	daemons []*Daemon
	undo    []func()
}

// labs are the open ones, for CloseAll.
var (
	labs      = map[*Lab]bool{}
	labsMu    sync.Mutex
	labCount  int
	sweepOnce sync.Once
)

// New starts an empty layout. It needs root.
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

// Close ends every process of the layout and removes its namespaces and files.
// The daemons are asked first, so that they leave as they would.
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

// Main is the body of a test package's TestMain: it runs the tests and closes every
// layout, also when it is interrupted, and does not return.
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

// CloseAll closes every open layout and removes what was built: for the end of
// the process and for signals.
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

// cleanup registers f for Close, which runs the latest first. It reports false,
// without having registered it, if the lab is closed.
func (l *Lab) cleanup(f func()) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.closed {
		l.undo = append(l.undo, f)
	}
	return !l.closed
}

// run runs a command of set-up and fails the test if that fails.
func (l *Lab) run(args ...string) string {
	l.T.Helper()
	out, err := exec.Command(args[0], args[1:]...).CombinedOutput()
	if err != nil {
		l.T.Fatalf("lab: %s: %v: %s", strings.Join(args, " "), err, out)
	}
	return string(out)
}

// leftoverName matches what a lab makes, with the process id of its maker.
var leftoverName = regexp.MustCompile(`^weft([0-9]+)-`)

// sweep removes what labs of dead processes left behind.
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

// removeNamespace ends the processes in a namespace of a lab and deletes it.
// Nobody else has any in there.
func removeNamespace(ns string) {
	for _, pid := range namespacePIDs(ns) {
		syscall.Kill(pid, syscall.SIGKILL)
	}
	exec.Command("ip", "netns", "delete", ns).Run()
}

// namespacePIDs lists the processes in a namespace, without this one, of which
// a thread may be there on an errand.
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

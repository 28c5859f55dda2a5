package control

import (
	"context"
	"encoding/json"
	"io"
	"io/fs"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"weft/control/access"
	"weft/control/engines"
	"weft/control/underlay"
	"weft/control/workers/workertest"
	"weft/datapath"
	"weft/engine"
	"weft/flowtable"
	"weft/internal/waitfor"
)

// fakeEngine stands for the engine process: workers with a real cache and real
// rings, whose frames are keys that a test gives them.
type fakeEngine struct {
	mu       sync.Mutex
	workers  []*workertest.Worker
	start    *engine.Kept
	attached map[uint32]engine.Kept
	kept     map[string]engine.Kept
	gone     chan struct{}
	dead     bool
	stuck    bool // Kill does not end it
}

func newFakeEngine() *fakeEngine {
	return &fakeEngine{gone: make(chan struct{}), attached: map[uint32]engine.Kept{}, kept: map[string]engine.Kept{}}
}

func (e *fakeEngine) PID() int { return os.Getpid() }

func (e *fakeEngine) Gone() <-chan struct{} { return e.gone }

func (e *fakeEngine) Wait() { <-e.gone }

func (e *fakeEngine) Start(s engine.Start, m *engine.Memory) error {
	e.start = &engine.Kept{Request: engine.Request{Op: engine.OpStart, Start: &s}, FDs: duplicates(m.FDs())}
	own, err := engine.OpenMemory(s, duplicates(m.FDs()))
	if err != nil {
		return err
	}
	for i := range own.Shared {
		w := workertest.New(own.Shared[i], own.UpcallEvent, e.gone)
		e.workers = append(e.workers, w)
	}
	return nil
}

func duplicates(fds []int) []int {
	var dups []int
	for _, fd := range fds {
		dup, err := unix.Dup(fd)
		if err != nil {
			panic(err)
		}
		dups = append(dups, dup)
	}
	return dups
}

func (e *fakeEngine) Attach(a engine.Attach, fds []int) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.dead {
		return engine.ErrGone
	}
	e.attached[a.Port] = engine.Kept{Request: engine.Request{Op: engine.OpAttach, Attach: &a}}
	return nil
}

func (e *fakeEngine) Detach(port uint32) (json.RawMessage, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.dead {
		return nil, engine.ErrGone
	}
	delete(e.attached, port)
	return nil, nil
}

func (e *fakeEngine) Keep(key string, blob json.RawMessage, fds []int) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.dead {
		return engine.ErrGone
	}
	e.kept[key] = engine.Kept{Request: engine.Request{Op: engine.OpKeep, Key: key, Blob: blob}, FDs: duplicates(fds)}
	return nil
}

func (e *fakeEngine) Forget(key string) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.kept, key)
	return nil
}

func (e *fakeEngine) Recall() ([]engine.Kept, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	all := []engine.Kept{*e.start}
	for _, k := range e.attached {
		all = append(all, k)
	}
	for _, k := range e.kept {
		all = append(all, k)
	}
	for i := range all {
		all[i].FDs = duplicates(all[i].FDs)
	}
	return all, nil
}

func (e *fakeEngine) Stop() error { return e.Kill() }

func (e *fakeEngine) Kill() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.dead {
		e.dead = true
		close(e.gone)
	}
	if e.stuck {
		return engine.ErrStuck
	}
	return nil
}

func (e *fakeEngine) Close() error { return nil }

func (e *fakeEngine) Condemn() { _ = e.Kill() }

func (e *fakeEngine) Pending() engine.Pending { return engine.Pending{} }

// fakes is a daemon over fake engines, and the engines it has started.
type fakes struct {
	t       testing.TB
	config  Config
	d       *Daemon
	stop    context.CancelFunc
	mu      sync.Mutex
	engines []*fakeEngine
	// launcher starts the engines. A test changes it while no engine is started.
	launcher *fakeLauncher
}

// last is the engine started last, nil before any.
func (f *fakes) last() *fakeEngine {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.engines) == 0 {
		return nil
	}
	return f.engines[len(f.engines)-1]
}

// testSizes keep a test's memory small.
var testSizes = datapath.Sizes{
	Cache: flowtable.Sizes{Megaflows: 1024, Exact: 1024, Masks: 16, Actions: 8192},
	Held:  256, CommandRing: 1 << 18, UpcallRing: 1 << 18, Templates: underlay.MaxTemplates,
}

func newFakes(t testing.TB) *fakes {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root: the daemon does")
	}
	dir := t.TempDir()
	f := &fakes{t: t, config: Config{
		Socket: filepath.Join(dir, "s"), StateDir: filepath.Join(dir, "state"), Exe: "none", Workers: 1, Log: slog.New(slog.DiscardHandler), sizes: testSizes,
	}}
	f.launcher = &fakeLauncher{f: f}
	f.config.launcher = f.launcher
	t.Cleanup(func() {
		f.end()
		for _, e := range f.engines {
			_ = e.Kill()
		}
	})
	f.begin()
	return f
}

func (f *fakes) begin() {
	f.t.Helper()
	d, err := newDaemon(f.config)
	if err != nil {
		f.t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	f.d, f.stop = d, stop
	if err := d.begin(ctx); err != nil {
		f.t.Fatal(err)
	}
}

// end takes the daemon down in good order, the engine with it.
func (f *fakes) end() {
	if f.d != nil {
		f.stop()
		f.d.end()
		f.d = nil
	}
}

// die ends the daemon as SIGKILL would, as far as its own process allows: the
// engine goes on, nothing is written or told any more.
func (f *fakes) die() {
	f.stop()
	f.d.done.Wait()
	f.d.pipeline.EndUpcalls()
	f.d.servers.Close()
	f.d.kernel.Close()
	if err := f.d.store.Close(); err != nil {
		f.t.Fatal(err)
	}
	f.d = nil
}

func (f *fakes) worker() *workertest.Worker { return f.last().workers[0] }

// settle waits until no frame waits for control.
func (f *fakes) settle() {
	f.t.Helper()
	waitfor.True(f.t, "no frame waits", func() bool { return f.worker().Waiting() == 0 })
}

// byRoot is a request of root's, for handlers called without a connection.
func byRoot(method, target string, body io.Reader) *http.Request {
	r := httptest.NewRequest(method, target, body)
	return r.WithContext(access.WithPeer(r.Context(), access.Peer{Role: access.Write, Share: "uid 0", Name: "uid 0"}))
}

// fakeLauncher starts fake engines; the functions, unless nil, take the place of its own.
type fakeLauncher struct {
	f       *fakes
	prepare func() (*engine.Spare, error)
	spawn   func() (engines.Client, error)
	connect func() (engines.Client, error)
}

func (l *fakeLauncher) Prepare(string, string, int) (*engine.Spare, error) {
	if l.prepare != nil {
		return l.prepare()
	}
	return nil, nil
}

func (l *fakeLauncher) Spawn(string, string) (engines.Client, error) {
	if l.spawn != nil {
		return l.spawn()
	}
	return l.spawnFake()
}

func (l *fakeLauncher) spawnFake() (engines.Client, error) {
	e := newFakeEngine()
	l.f.mu.Lock()
	defer l.f.mu.Unlock()
	l.f.engines = append(l.f.engines, e)
	return e, nil
}

func (l *fakeLauncher) Connect(string) (engines.Client, error) {
	if l.connect != nil {
		return l.connect()
	}
	if e := l.f.last(); e != nil && !e.dead {
		return e, nil
	}
	return nil, fs.ErrNotExist
}

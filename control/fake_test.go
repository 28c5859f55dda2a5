// SPDX-License-Identifier: Apache-2.0

package control

import (
	"context"
	"io"
	"io/fs"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"weft/control/access"
	"weft/control/engines"
	"weft/control/engines/enginetest"
	"weft/control/underlay"
	"weft/control/workers/workertest"
	"weft/datapath"
	"weft/engine"
	"weft/flowtable"
	"weft/internal/waitfor"
)

type fakes struct {
	t       testing.TB
	config  Config
	d       *Daemon
	stop    context.CancelFunc
	mu      sync.Mutex
	engines []*enginetest.Engine
	// launcher starts simulated engines. A test may change its functions between two starts.
	launcher *fakeLauncher
}

func (f *fakes) last() *enginetest.Engine {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.engines) == 0 {
		return nil
	}
	return f.engines[len(f.engines)-1]
}

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
	f.beginWith(d)
}

func (f *fakes) beginWith(d *Daemon) {
	f.t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	f.d, f.stop = d, stop
	if err := d.begin(ctx); err != nil {
		f.t.Fatal(err)
	}
}

func (f *fakes) end() {
	if f.d != nil {
		f.stop()
		f.d.end()
		f.d = nil
	}
}

func (f *fakes) die() {
	f.stop()
	f.d.done.Wait()
	f.d.configuration.Do(f.d.pipeline.EndUpcalls)
	f.d.servers.Close()
	f.d.kernel.Close()
	if err := f.d.store.Close(); err != nil {
		f.t.Fatal(err)
	}
	f.d = nil
}

func (f *fakes) worker() *workertest.Worker { return f.last().Workers[0] }

func (f *fakes) settle() {
	f.t.Helper()
	waitfor.True(f.t, "no frame waits", func() bool { return f.worker().Waiting() == 0 })
}

// byRoot makes an API request as if root had sent it. It uses no connection.
func byRoot(method, target string, body io.Reader) *http.Request {
	r := httptest.NewRequest(method, target, body)
	return r.WithContext(access.WithConn(r.Context(), &access.Conn{Peer: access.Peer{Role: access.Write, Share: "uid 0", Name: "uid 0"}}))
}

// fakeLauncher is an engines.Launcher of simulated engines. A function field that is not nil replaces
// the default behaviour of the method with its name.
type fakeLauncher struct {
	f        *fakes
	prepare  func() (*engine.Spare, error)
	rehearse func() error
	spawn    func() (engines.Client, error)
	connect  func() (engines.Client, error)
}

func (l *fakeLauncher) Prepare(string, string, int) (*engine.Spare, error) {
	if l.prepare != nil {
		return l.prepare()
	}
	return nil, nil
}

func (l *fakeLauncher) Rehearse(string, string, engine.Start) error {
	if l.rehearse != nil {
		return l.rehearse()
	}
	return nil
}

func (l *fakeLauncher) Spawn(string, string) (engines.Client, error) {
	if l.spawn != nil {
		return l.spawn()
	}
	return l.spawnFake()
}

func (l *fakeLauncher) spawnFake() (engines.Client, error) {
	e := enginetest.New()
	l.f.mu.Lock()
	defer l.f.mu.Unlock()
	l.f.engines = append(l.f.engines, e)
	return e, nil
}

func (l *fakeLauncher) Connect(string) (engines.Client, error) {
	if l.connect != nil {
		return l.connect()
	}
	if e := l.f.last(); e != nil && !e.HasEnded() {
		return e, nil
	}
	return nil, fs.ErrNotExist
}

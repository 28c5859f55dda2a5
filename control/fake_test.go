package control

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"weft/control/access"
	"weft/control/underlay"
	"weft/control/workers"
	"weft/datapath"
	"weft/engine"
	"weft/flowtable"
	"weft/internal/clock"
	"weft/internal/shm"
	"weft/internal/waitfor"
	"weft/packet"
)

// fakeEngine stands for the engine process: workers with a real cache and real
// rings, whose frames are keys that a test gives them.
type fakeEngine struct {
	mu       sync.Mutex
	workers  []*fakeWorker
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

func (e *fakeEngine) PID() int              { return os.Getpid() }
func (e *fakeEngine) Gone() <-chan struct{} { return e.gone }
func (e *fakeEngine) Wait()                 { <-e.gone }

func (e *fakeEngine) Start(s engine.Start, m *engine.Memory) error {
	e.start = &engine.Kept{Request: engine.Request{Op: engine.OpStart, Start: &s}, FDs: duplicates(m.FDs())}
	own, err := engine.OpenMemory(s, duplicates(m.FDs()))
	if err != nil {
		return err
	}
	for i := range own.Shared {
		w := &fakeWorker{shared: own.Shared[i], do: make(chan func()), stop: e.gone}
		w.cache = flowtable.NewCache(w.shared.Cache, 1)
		w.commands = shm.NewConsumer(w.shared.Commands)
		w.upcalls = shm.NewProducer(w.shared.Upcalls, own.UpcallEvent)
		e.workers = append(e.workers, w)
		go w.run()
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

// fakeWorker is one worker. Its goroutine owns everything but do.
type fakeWorker struct {
	shared   *datapath.Shared
	cache    *flowtable.Cache
	commands *shm.Consumer
	upcalls  *shm.Producer
	do       chan func()
	stop     chan struct{}
	stalled  atomic.Bool // commands are left lying

	held     uint32              // next slot
	retries  []uint32            // held slots resumed by CmdRetry
	executed map[uint32]int      // held slots executed: number of actions
	dropped  map[uint32]uint32   // held slots dropped: reason
	frames   map[uint32]fakeMiss // held
	lost     int                 // frames that missed again
	taps     [datapath.MaxTaps]fakeTap
	installs int
}

type fakeTap struct {
	kind datapath.TapKind
	snap uint32
}

type fakeMiss struct {
	key   flowtable.Key
	bytes uint64
}

func (w *fakeWorker) run() {
	w.executed, w.dropped, w.frames = map[uint32]int{}, map[uint32]uint32{}, map[uint32]fakeMiss{}
	for {
		select {
		case <-w.stop:
			return
		case f := <-w.do:
			f()
		case <-time.After(20 * time.Microsecond):
		}
		for !w.stalled.Load() {
			msg := w.commands.Next()
			if msg == nil {
				break
			}
			w.command(msg)
			w.commands.Release()
		}
	}
}

// on runs f on the worker's goroutine, unless its engine has died.
func (w *fakeWorker) on(f func()) {
	done := make(chan struct{})
	select {
	case w.do <- func() { f(); close(done) }:
		<-done
	case <-w.stop:
	}
}

func (w *fakeWorker) command(msg []byte) {
	op, arg := datapath.CommandOp(binary.LittleEndian.Uint32(msg)), binary.LittleEndian.Uint32(msg[4:])
	body := msg[8:]
	switch op {
	case datapath.CmdInstall:
		w.installs++
		var key, mask flowtable.Key
		for i := range key {
			key[i] = binary.LittleEndian.Uint64(body[8*i:])
			mask[i] = binary.LittleEndian.Uint64(body[8*(len(key)+i):])
		}
		var actions []flowtable.Action
		for rest := body[16*len(key):]; len(rest) >= 16; rest = rest[16:] {
			actions = append(actions, flowtable.Action{
				Op: flowtable.Op(rest[0]), U16: binary.LittleEndian.Uint16(rest[2:]),
				U32: binary.LittleEndian.Uint32(rest[4:]), U64: binary.LittleEndian.Uint64(rest[8:]),
			})
		}
		if r := w.cache.Install(arg, &key, &mask, actions); r != flowtable.Installed {
			panic(fmt.Sprintf("install refused: %d", r))
		}
	case datapath.CmdRemove:
		w.cache.Remove(arg)
	case datapath.CmdRetry:
		w.retries = append(w.retries, arg)
		if f, ok := w.frames[arg]; ok && !w.hit(&f.key, f.bytes) {
			w.lost++
		}
		delete(w.frames, arg)
	case datapath.CmdExecute:
		w.executed[arg] = len(body) / 16
		delete(w.frames, arg)
	case datapath.CmdTap:
		w.taps[arg] = fakeTap{
			kind: datapath.TapKind(binary.LittleEndian.Uint32(body)), snap: binary.LittleEndian.Uint32(body[8:]),
		}
	case datapath.CmdDropHeld:
		w.dropped[arg] = binary.LittleEndian.Uint32(body)
	}
}

// hit counts a frame if a megaflow is there for it.
func (w *fakeWorker) hit(key *flowtable.Key, bytes uint64) bool {
	slot, ok := w.lookup(key)
	if ok {
		f := w.cache.Flow(slot)
		atomic.AddUint64(&f.Packets, 1)
		atomic.AddUint64(&f.Bytes, bytes)
		atomic.StoreUint64(&f.UsedNS, clock.Monotonic())
	}
	return ok
}

func (w *fakeWorker) lookup(key *flowtable.Key) (uint32, bool) {
	var keys [packet.BatchSize]flowtable.Key
	var out [packet.BatchSize]uint32
	var n flowtable.LookupCounts
	keys[0] = *key
	w.cache.Lookup(&keys, 1, &out, &n)
	return out[0], out[0] != flowtable.NoSlot
}

// frame is a frame that arrives: a hit, or a miss that is held and told.
func (w *fakeWorker) frame(key flowtable.Key, bytes uint64) {
	w.on(func() {
		if w.hit(&key, bytes) {
			return
		}
		w.held = (w.held + 1) % uint32(len(w.shared.Held))
		w.frames[w.held] = fakeMiss{key, bytes}
		atomic.StoreUint32(&w.shared.Held[w.held].Len, uint32(bytes))
		msg := binary.LittleEndian.AppendUint32(nil, uint32(datapath.UpMiss))
		msg = binary.LittleEndian.AppendUint32(msg, w.held)
		for _, word := range key {
			msg = binary.LittleEndian.AppendUint64(msg, word)
		}
		if !w.upcalls.Push(msg) {
			panic("upcall ring is full")
		}
	})
}

// waiting is the number of frames that wait for control.
func (w *fakeWorker) waiting() (n int) {
	w.on(func() { n = len(w.frames) })
	return n
}

// fakes is a daemon over fake engines, and the engines it has started.
type fakes struct {
	t       testing.TB
	config  Config
	d       *Daemon
	stop    context.CancelFunc
	mu      sync.Mutex
	engines []*fakeEngine
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
	spawn, prepare, connect := spawnEngine, prepareEngine, connectEngine
	prepareEngine = func(string, string, int) (*engine.Spare, error) { return nil, nil }
	spawnEngine = func(string, string) (engineClient, error) {
		e := newFakeEngine()
		f.mu.Lock()
		defer f.mu.Unlock()
		f.engines = append(f.engines, e)
		return e, nil
	}
	connectEngine = func(string) (engineClient, error) {
		if e := f.last(); e != nil && !e.dead {
			return e, nil
		}
		return nil, fs.ErrNotExist
	}
	t.Cleanup(func() {
		f.end()
		for _, e := range f.engines {
			_ = e.Kill()
		}
		spawnEngine, prepareEngine, connectEngine = spawn, prepare, connect
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
	f.d.pipeline.upcalls.close()
	f.d.servers.Close()
	f.d.underlay.Close()
	if err := f.d.store.Close(); err != nil {
		f.t.Fatal(err)
	}
	f.d = nil
}

func (f *fakes) worker() *fakeWorker { return f.last().workers[0] }

// settle waits until no frame waits for control.
func (f *fakes) settle() {
	f.t.Helper()
	waitfor.True(f.t, "no frame waits", func() bool { return f.worker().waiting() == 0 })
}

// byRoot is a request of root's, for handlers called without a connection.
func byRoot(method, target string, body io.Reader) *http.Request {
	r := httptest.NewRequest(method, target, body)
	return r.WithContext(access.WithPeer(r.Context(), access.Peer{Role: access.Write, Share: "uid 0", Name: "uid 0"}))
}

// withoutEngine runs do while the daemon's workers are gone, on the same memory.
func (f *fakes) withoutEngine(do func()) {
	f.d.pipeline.mu.Lock()
	present := f.d.pipeline.workers
	gone := workers.New(present.Memory(), nil)
	gone.MarkGone()
	f.d.pipeline.workers = gone
	f.d.pipeline.mu.Unlock()
	do()
	f.d.pipeline.mu.Lock()
	defer f.d.pipeline.mu.Unlock()
	f.d.pipeline.workers = present
}

// changing waits until somebody holds the lock of changes for long.
func (f *fakes) changing() {
	f.t.Helper()
	held := 0 // ms
	waitfor.True(f.t, "the workers are not replaced while a change waits for them", func() bool {
		if held++; f.d.change.TryLock() {
			f.d.change.Unlock()
			held = 0
		}
		return held == 20
	})
}

package control

import (
	"context"
	"debug/elf"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"reflect"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"weft/conntrack"
	"weft/control/counters"
	"weft/control/loop"
	"weft/control/observe"
	"weft/control/store"
	"weft/control/workers"
	"weft/datapath"
	"weft/engine"
	"weft/internal/cpu"
)

// engineClient is engine.Client, or a test's stand-in.
type engineClient interface {
	PID() int
	Gone() <-chan struct{}
	Wait()
	Start(s engine.Start, m *engine.Memory) error
	Attach(a engine.Attach, fds []int) error
	Detach(port uint32) (json.RawMessage, error)
	Keep(key string, blob json.RawMessage, fds []int) error
	Forget(key string) error
	Recall() ([]engine.Kept, error)
	Stop() error
	Kill() error
	Condemn()
	Pending() engine.Pending
	Close() error
}

var _ engineClient = (*engine.Client)(nil)

// spawnEngine, prepareEngine and connectEngine are replaced by tests.
var (
	prepareEngine = engine.Prepare

	spawnEngine = func(exe, dir string) (engineClient, error) {
		c, err := engine.Spawn(exe, dir)
		if err != nil {
			return nil, err
		}
		return c, nil
	}
	connectEngine = func(dir string) (engineClient, error) {
		c, err := engine.Connect(dir)
		if err != nil {
			return nil, err
		}
		return c, nil
	}
)

// engine returns the client, nil while there is no engine.
func (d *Daemon) engine() engineClient {
	d.engineMu.Lock()
	defer d.engineMu.Unlock()
	return d.client
}

func (d *Daemon) setEngine(c engineClient) {
	d.engineMu.Lock()
	defer d.engineMu.Unlock()
	d.client = c
}

// keepCounters is under which the engine keeps the counter region for the next control
// process.
const keepCounters = "counters"

// inheritance is what a living engine kept of an earlier control process.
type inheritance struct {
	client   engineClient // nil: no engine lives
	memory   *engine.Memory
	counters *counters.Region
	ports    map[uint32]*engine.Kept // by number, devices
	attached map[uint32]bool         // ports the engine forwards for
	same     bool                    // the engine is as this process would start it
}

// keptCounters is the blob of keepCounters.
type keptCounters struct {
	// Build is the binary of control and engine; another one's memory is not
	// read, for its layout may be another.
	Build string `json:"build"`
}

// inherit connects to the engine that serves the state directory, if there is
// one, and takes over what it kept.
func (d *Daemon) inherit() (*inheritance, error) {
	in := &inheritance{ports: map[uint32]*engine.Kept{}, attached: map[uint32]bool{}}
	client, err := connectEngine(d.config.StateDir)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ECONNREFUSED) {
		return in, nil
	}
	if err != nil {
		return nil, err
	}
	in.client = client
	kept, err := client.Recall()
	if err != nil {
		d.log.Warn("the running engine does not say what it has, replacing it", "error", err)
		return in, nil
	}
	var start *engine.Kept
	build := ""
	for i := range kept {
		k := &kept[i]
		switch {
		case k.Request.Op == engine.OpStart:
			start = k
		case k.Request.Op == engine.OpAttach:
			in.attached[k.Request.Attach.Port] = true
			k.CloseFDs()
		case k.Request.Key == keepCounters:
			build = d.inheritCounters(in, k)
		default:
			d.inheritPort(in, k)
		}
	}
	d.inheritMemory(in, start, build)
	return in, nil
}

func (d *Daemon) inheritCounters(in *inheritance, k *engine.Kept) (build string) {
	var about keptCounters
	if json.Unmarshal(k.Request.Blob, &about) != nil || len(k.FDs) != 1 {
		k.CloseFDs()
		return ""
	}
	c, err := counters.Open(k.FDs[0], d.start.Sizes.Cache.Megaflows)
	if err != nil {
		d.log.Warn("statistics begin anew", "error", err)
		return ""
	}
	in.counters = c
	return about.Build
}

func (d *Daemon) inheritPort(in *inheritance, k *engine.Kept) {
	number, isPort := strings.CutPrefix(k.Request.Key, "port/")
	n, err := strconv.ParseUint(number, 10, 32)
	if !isPort || err != nil {
		k.CloseFDs()
		return
	}
	in.ports[uint32(n)] = k
}

func (d *Daemon) inheritMemory(in *inheritance, start *engine.Kept, build string) {
	if start == nil {
		return
	}
	s := start.Request.Start
	if in.counters == nil || build != buildID() || !reflect.DeepEqual(s.Sizes, d.start.Sizes) {
		start.CloseFDs()
		return
	}
	m, err := engine.OpenMemory(*s, start.FDs)
	if err != nil {
		d.log.Warn("the running engine's memory cannot be used, replacing it", "error", err)
		return
	}
	in.memory = m
	in.same = reflect.DeepEqual(*s, d.start)
}

// buildID identifies this binary; empty if it does not say.
var buildID = sync.OnceValue(readBuildID)

func readBuildID() string {
	f, err := elf.Open("/proc/self/exe")
	if err != nil {
		return ""
	}
	defer f.Close()
	section := f.Section(".note.go.buildid")
	if section == nil {
		return ""
	}
	note, err := section.Data()
	if err != nil {
		return ""
	}
	return hex.EncodeToString(note)
}

// startEngine brings up engine, ports and flows at the start of the daemon: on
// an engine that lives, without touching what it forwards, else on a new one.
// Caller holds change.
func (d *Daemon) startEngine(saved store.State) error {
	in, err := d.inherit()
	if err != nil {
		return err
	}
	region := in.counters
	if region == nil {
		if region, err = counters.New(d.start.Sizes.Cache.Megaflows); err != nil {
			return err
		}
	}
	d.region = region
	d.pipeline.Load(&saved, region, in.counters != nil)
	d.setEngine(in.client)
	if in.memory != nil {
		w := workers.New(in.memory, in.client.Gone())
		d.guard = d.guardEngine(w, in.client)
		d.pipeline.Inherit(w)
	}
	d.ports.Load(saved.Ports, saved.Names, in.ports)
	for number, k := range in.ports { // ports that were deleted while control died
		k.CloseFDs()
		if in.client != nil {
			_, _ = in.client.Detach(number)
			_ = in.client.Forget(k.Request.Key)
		}
	}
	if in.same {
		return d.takeOver(in)
	}
	return d.replaceDifferent(in)
}

// takeOver goes on with the engine that lives.
func (d *Daemon) takeOver(in *inheritance) error {
	w := d.pipeline.Workers()
	d.ports.SetTunnels()
	observe.Disarm(w)
	w.Connections().Watch(0, nil)
	d.pipeline.Resume()
	d.ports.TakeOver(w, in.attached)
	d.receive(w)
	if err := d.pipeline.AnswerUpcalls(); err != nil {
		return err
	}
	d.log.Info("took over the running engine", "pid", in.client.PID(), "megaflows", d.pipeline.Counts().Megaflows)
	return nil
}

// replaceDifferent starts a new engine in place of one that is not as it should
// be, or of none. Devices that were kept go on from where the old one was.
func (d *Daemon) replaceDifferent(in *inheritance) error {
	if in.client != nil {
		if err := d.endOld(in.client); err != nil {
			return err
		}
		in.client.Close()
	}
	if in.memory != nil { // what it counted
		d.pipeline.Workers().MarkGone()
		<-d.guard.done
		d.pipeline.Abandon()
	}
	if in.counters != nil {
		d.pipeline.ForgetSlots()
	}
	client, w, err := d.spawn(in.memory)
	if in.memory != nil {
		in.memory.Close()
	}
	if err != nil {
		return err
	}
	d.adoptEngine(client, w, in.client != nil)
	d.log.Info("engine started", "pid", client.PID(), "cores", d.start.Cores)
	return nil
}

// spawn starts an engine with fresh memory, and the connections of old, if that
// is not nil.
func (d *Daemon) spawn(old *engine.Memory) (engineClient, *workers.Workers, error) {
	memory, err := engine.NewMemory(d.start, old)
	if err != nil {
		return nil, nil, err
	}
	if old == nil {
		d.loadConnections(&memory.Connections)
	}
	client, err := d.launch()
	if err != nil {
		memory.Close()
		return nil, nil, err
	}
	if err = client.Start(d.start, memory); err == nil {
		var blob []byte
		if blob, err = json.Marshal(keptCounters{Build: buildID()}); err == nil {
			err = client.Keep(keepCounters, blob, []int{d.region.FD()})
		}
	}
	if err != nil {
		_ = client.Kill()
		client.Close()
		memory.Close()
		return nil, nil, fmt.Errorf("engine: start of the workers: %w", err)
	}
	return client, workers.New(memory, client.Gone()), nil
}

// loadConnections takes up the connections that the last stop saved.
func (d *Daemon) loadConnections(table *conntrack.Memory) {
	n, saved, err := d.store.LoadConnections(table)
	switch {
	case err != nil:
		d.log.Warn("not all saved connections go on", "connections", n, "error", err)
	case saved:
		d.log.Info("saved connections go on", "connections", n)
	}
}

// launch brings up an engine: the spare, if there is one. Caller holds change.
func (d *Daemon) launch() (engineClient, error) {
	if s := d.spare; s != nil {
		d.spare = nil
		client, err := s.Engage()
		if err == nil {
			return client, nil
		}
		d.log.Warn("the spare engine is of no use, starting another", "error", err)
	}
	return spawnEngine(d.config.Exe, d.config.StateDir)
}

// prepareSpare has an engine ready for the death of the present one.
func (d *Daemon) prepareSpare() {
	d.change.Lock()
	defer d.change.Unlock()
	if d.spare != nil {
		return
	}
	var err error
	if d.spare, err = prepareEngine(d.config.Exe, d.config.StateDir, len(d.start.Cores)); err != nil {
		d.log.Warn("no spare engine", "error", err)
	}
}

// adoptEngine makes a fresh engine the present one and sends it all there is:
// templates, terminations, megaflows, and then the ports. Caller holds change.
func (d *Daemon) adoptEngine(client engineClient, w *workers.Workers, resume bool) {
	d.guard = d.guardEngine(w, client) // first: what follows waits for the workers
	// What comes in on the first port must find the last one there.
	w.Broadcast(datapath.AppendCommand(nil, datapath.CmdHold, 1, nil))
	d.templates.Replay(w, d.region.Tunnels)
	d.ports.Terminate(w)
	d.pipeline.Fill(w)
	d.setEngine(client)
	d.ports.AttachAll(resume)
	d.receive(w)
	if err := d.pipeline.AnswerUpcalls(); err != nil {
		d.log.Error("upcalls", "error", err)
	}
}

// receive ends the hold that adoptEngine, of this process or of one before it,
// has put on the workers.
func (d *Daemon) receive(w *workers.Workers) {
	w.Broadcast(datapath.AppendCommand(nil, datapath.CmdHold, 0, nil))
	_ = w.WaitApplied() // a dead engine's successor is told anew
}

// Times between two attempts to start an engine that does not start, or dies at
// once.
const (
	leastRespawnPause = 100 * time.Millisecond
	mostRespawnPause  = 5 * time.Second
	soundAfter        = 200 * time.Millisecond
)

// supervise replaces the engine whenever it dies, until ctx ends.
func (d *Daemon) supervise(ctx context.Context) {
	pause, born := time.Duration(0), time.Now()
	for {
		client := d.engine()
		d.prepareSpare()
		ended := watch(client)
		select {
		case <-ctx.Done():
			return
		case <-client.Gone():
		case <-ended:
		}
		died := time.Now()
		d.pipeline.Workers().MarkGone()
		if ctx.Err() != nil {
			return
		}
		hang := d.guard.hang.Load()
		if hang == nil {
			d.log.Error("the engine has died, starting another", "pid", client.PID())
			d.setTrouble("the engine has died; weftd is starting another")
		}
		d.replaced.count(hang)
		d.restarts.Add(1)
		if died.Sub(born) > soundAfter {
			pause = 0
		}
		if !loop.Sleep(ctx, pause) {
			return
		}
		pause = min(max(2*pause, leastRespawnPause), mostRespawnPause)
		for !d.replaceDead(client, died) {
			if !loop.Sleep(ctx, pause) {
				return
			}
			pause = min(2*pause, mostRespawnPause)
		}
		born = time.Now() // not later: on a busy machine the rest takes its time
		release(client, ended)
	}
}

// release closes the connection to an engine once its process has ended, which a stuck
// one does at some later time.
func release(client engineClient, ended <-chan struct{}) {
	closeIt := func() {
		<-ended // and with it the use of what Close closes
		client.Close()
		_ = cpu.ShortSlices()
	}
	select {
	case <-ended:
		closeIt()
	default:
		go closeIt()
	}
}

// watch closes what it returns once an engine's process has ended, and has this
// process run before all others from then on, until cpu.ShortSlices: guests are
// waiting. The thread that waits for it does so from the start.
func watch(client engineClient) (ended <-chan struct{}) {
	c := make(chan struct{})
	go func() {
		defer close(c)
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		_ = cpu.UrgentThread() // without the privilege all takes its turn
		client.Wait()
		_ = cpu.Urgent()
	}()
	return c
}

// replaceDead credits what the dead engine counted, starts another and sends it
// everything. It reports false if none could be started.
func (d *Daemon) replaceDead(dead engineClient, died time.Time) bool {
	d.change.Lock()
	defer d.change.Unlock()
	d.setEngine(nil)
	if err := d.endOld(dead); err != nil { // it must not touch the devices any more
		d.log.Error("the old engine", "error", err)
	}
	if hang := d.guard.hang.Swap(nil); hang != nil { // once, however many starts fail
		d.ports.Blame(hang)
	}
	client, w, err := d.spawn(d.pipeline.Workers().Memory())
	if err != nil {
		d.log.Error("no engine can be started, trying again", "error", err)
		return false
	}
	forwarding := time.Since(died)
	d.pipeline.EndUpcalls()
	guard, old := d.guard, d.pipeline.Replace(w)
	d.adoptEngine(client, w, true)
	ports := time.Since(died)
	<-guard.done
	old.Memory().Close()
	d.trouble.Store(nil)
	d.log.Info("engine replaced", "pid", client.PID(), "ms", ports.Milliseconds(), "workers_ms", forwarding.Milliseconds(), "megaflows", d.pipeline.Counts().Megaflows)
	return true
}

package engines

import (
	"context"
	"encoding/json"
	"runtime"
	"time"

	"weft/control/loop"
	"weft/control/workers"
	"weft/datapath"
	"weft/engine"
	"weft/internal/cpu"
)

// Client is engine.Client, or a test's stand-in.
type Client interface {
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

var _ Client = (*engine.Client)(nil)

// launch brings up an engine: the spare, if there is one. Caller holds change.
func (d *Engines) launch() (Client, error) {
	if s := d.spare; s != nil {
		d.spare = nil
		client, err := s.Engage()
		if err == nil {
			return client, nil
		}
		d.log.Warn("the spare engine is of no use, starting another", "error", err)
	}
	return d.launcher.Spawn(d.exe, d.dir)
}

// prepareSpare has an engine ready for the death of the present one.
func (d *Engines) prepareSpare() {
	d.change.Lock()
	defer d.change.Unlock()
	if d.spare != nil {
		return
	}
	var err error
	if d.spare, err = d.launcher.Prepare(d.exe, d.dir, len(d.start.Cores)); err != nil {
		d.log.Warn("no spare engine", "error", err)
	}
}

// adoptEngine makes a fresh engine the present one and sends it all there is:
// templates, terminations, megaflows, and then the ports. Caller holds change.
func (d *Engines) adoptEngine(client Client, w *workers.Workers, resume bool) {
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
func (d *Engines) receive(w *workers.Workers) {
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

// Supervise replaces the engine whenever it dies, until ctx ends.
func (d *Engines) Supervise(ctx context.Context) {
	pause, born := time.Duration(0), time.Now()
	for {
		client := d.Current()
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
			d.SetTrouble("the engine has died; weftd is starting another")
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
func release(client Client, ended <-chan struct{}) {
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
func watch(client Client) (ended <-chan struct{}) {
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
func (d *Engines) replaceDead(dead Client, died time.Time) bool {
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

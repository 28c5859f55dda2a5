// SPDX-License-Identifier: Apache-2.0

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

// Client is engine.Client, or a fake in tests.
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

// launch returns a running engine: the spare, if there is one. The caller holds the
// lock of changes.
func (es *Engines) launch() (Client, error) {
	if s := es.spare; s != nil {
		es.spare = nil
		client, err := s.Engage()
		if err == nil {
			return client, nil
		}
		es.log.Warn("the spare engine is of no use, starting another", "error", err)
	}
	return es.launcher.Spawn(es.exe, es.dir)
}

// prepareSpare prepares an engine to replace the present one when it dies.
func (es *Engines) prepareSpare() {
	es.change.Lock()
	defer es.change.Unlock()
	if es.spare != nil {
		return
	}
	var err error
	if es.spare, err = es.launcher.Prepare(es.exe, es.dir, len(es.start.Cores)); err != nil {
		es.log.Warn("no spare engine", "error", err)
	}
}

// adoptEngine makes a fresh engine the present one and sends it all state: templates,
// terminations, megaflows, and then the ports. The caller holds the lock of changes.
func (es *Engines) adoptEngine(client Client, w *workers.Workers, resume bool) {
	es.guard = es.guardEngine(w, client) // first, because the next steps wait for the workers
	// Frames received on the first port may be for the last one, so the workers hold
	// until all ports are attached.
	w.Broadcast(datapath.AppendCommand(nil, datapath.CmdHold, 1, nil))
	es.templates.Replay(w, es.region.Tunnels)
	es.ports.Terminate(w)
	es.pipeline.Fill(w)
	es.setEngine(client)
	es.ports.AttachAll(resume)
	es.receive(w)
	if err := es.pipeline.AnswerUpcalls(); err != nil {
		es.log.Error("upcalls", "error", err)
	}
}

// receive ends the hold that adoptEngine, of this or of an earlier control process,
// has put on the workers.
func (es *Engines) receive(w *workers.Workers) {
	w.Broadcast(datapath.AppendCommand(nil, datapath.CmdHold, 0, nil))
	_ = w.WaitApplied() // an error means that the engine has died; the next one gets all state again
}

// Times between two attempts to start an engine that does not start or dies at once.
const (
	leastRespawnPause = 100 * time.Millisecond
	mostRespawnPause  = 5 * time.Second
	soundAfter        = 200 * time.Millisecond
)

// Supervise replaces the engine whenever it dies, until ctx ends.
func (es *Engines) Supervise(ctx context.Context) {
	pause, born := time.Duration(0), time.Now()
	for {
		client := es.Current()
		es.prepareSpare()
		ended := watch(client)
		select {
		case <-ctx.Done():
			return
		case <-client.Gone():
		case <-ended:
		}
		died := time.Now()
		es.pipeline.Workers().MarkGone()
		if ctx.Err() != nil {
			return
		}
		hang := es.guard.hang.Load()
		if hang == nil {
			es.log.Error("the engine has died, starting another", "pid", client.PID())
			es.SetTrouble("the engine has died; weftd is starting another")
		}
		es.replaced.count(hang)
		es.restarts.Add(1)
		if died.Sub(born) > soundAfter {
			pause = 0
		}
		if !loop.Sleep(ctx, pause) {
			return
		}
		pause = min(max(2*pause, leastRespawnPause), mostRespawnPause)
		for !es.replaceDead(client, died) {
			if !loop.Sleep(ctx, pause) {
				return
			}
			pause = min(2*pause, mostRespawnPause)
		}
		born = time.Now() // taken here, because the steps below take long on a busy machine
		release(client, ended)
	}
}

// release closes the connection to an engine once its process has ended, which takes
// a stuck process some time.
func release(client Client, ended <-chan struct{}) {
	closeIt := func() {
		<-ended // the process uses what Close closes until it has ended
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

// watch returns a channel that is closed once an engine's process has ended. From
// then until cpu.ShortSlices this process has priority over all others, because
// guests are waiting. The thread that waits for the process has this priority from
// the start.
func watch(client Client) (ended <-chan struct{}) {
	c := make(chan struct{})
	go func() {
		defer close(c)
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		_ = cpu.UrgentThread() // without the privilege the thread runs at normal priority
		client.Wait()
		_ = cpu.Urgent()
	}()
	return c
}

// replaceDead credits the counts of the dead engine, starts another and sends it all
// state. It returns false if no engine could be started.
func (es *Engines) replaceDead(dead Client, died time.Time) bool {
	es.change.Lock()
	defer es.change.Unlock()
	es.setEngine(nil)
	if err := es.endOld(dead); err != nil { // the dead engine must not touch the devices any more
		es.log.Error("the old engine", "error", err)
	}
	if hang := es.guard.hang.Swap(nil); hang != nil { // blames once, however many starts fail
		es.ports.Blame(hang)
	}
	client, w, err := es.spawn(es.pipeline.Workers().Memory())
	if err != nil {
		es.log.Error("no engine can be started, trying again", "error", err)
		return false
	}
	forwarding := time.Since(died)
	es.pipeline.EndUpcalls()
	guard, old := es.guard, es.pipeline.Replace(w)
	es.adoptEngine(client, w, true)
	ports := time.Since(died)
	<-guard.done
	old.Memory().Close()
	es.trouble.Store(nil)
	es.log.Info("engine replaced", "pid", client.PID(), "ms", ports.Milliseconds(), "workers_ms", forwarding.Milliseconds(), "megaflows", es.pipeline.Counts().Megaflows)
	return true
}

// SPDX-License-Identifier: Apache-2.0

package engines

import (
	"context"
	"encoding/json"
	"runtime"
	"time"

	"weft/control/change"
	"weft/control/loop"
	"weft/control/workers"
	"weft/datapath"
	"weft/engine"
	"weft/internal/buildinfo"
	"weft/internal/cpu"
)

// Client is a connection to an engine. *engine.Client implements it, and tests have a fake.
type Client interface {
	PID() int
	Build() buildinfo.Build
	Gone() <-chan struct{}
	Wait()
	Start(s engine.Start, m *engine.Memory) error
	Attach(a engine.Attach, fds []int) error
	Detach(port uint32) (json.RawMessage, error)
	Keep(key string, blob json.RawMessage, fds []int) error
	Forget(key string) error
	Recall() ([]engine.Kept, error)
	Halt() error
	Halted() bool
	Stop() error
	Kill() error
	Quiesce() error
	MayKill() bool
	Condemn()
	Pending() engine.Pending
	Close() error
}

var _ Client = (*engine.Client)(nil)

// launch returns a client of the spare engine or, if there is none, of a new engine process.
func (es *Engines) launch(*change.Tx) (Client, error) {
	if s := es.spare; s != nil {
		es.spare = nil
		client, err := s.Engage()
		if err == nil {
			return client, nil
		}
		es.log.Warn("cannot use the spare engine, starting another", "error", err)
	}
	return es.launcher.Spawn(es.image.path(), es.dir)
}

func (es *Engines) prepareSpare() {
	es.configuration.Do(func(tx *change.Tx) {
		if es.spare != nil {
			return
		}
		engine.RemoveSockets(es.dir, es.PID())
		var err error
		if es.spare, err = es.launcher.Prepare(es.image.path(), es.dir, len(es.start.Cores)); err != nil {
			es.log.Warn("no spare engine", "error", err)
		}
	})
}

// adoptEngine makes a new engine the present one, and sends it all state, the ports last. resume says
// that the ports' devices continue where an earlier engine stopped.
func (es *Engines) adoptEngine(tx *change.Tx, client Client, w *workers.Workers, resume bool) {
	es.guard = es.guardEngine(w, client) // before the next steps, because the workers may hang in them
	// Workers do not process received frames until all ports are attached, so that
	// every output exists.
	w.Broadcast(datapath.AppendCommand(nil, datapath.CmdHold, 1, nil))
	es.templates.Replay(w, es.region.Tunnels)
	es.ports.Terminate(tx, w)
	es.pipeline.Fill(tx, w)
	es.present.set(client)
	es.ports.AttachAll(tx, resume)
	es.receive(w)
	if err := es.pipeline.AnswerUpcalls(es.ports.Fault); err != nil {
		es.log.Error("upcalls", "error", err)
	}
}

// receive lets the workers of a new engine process received frames. Until then they do not, because
// adoptEngine has told them to wait until all ports are attached.
func (es *Engines) receive(w *workers.Workers) {
	w.Broadcast(datapath.AppendCommand(nil, datapath.CmdHold, 0, nil))
	_ = w.WaitApplied() // error ignored: the next engine gets all state again
}

// Pauses between attempts to start an engine, which double each time. After an engine that lived
// longer than soundAfter, there is no pause before the next.
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
		_ = cpu.ShortSlices() // guests do not wait any more
		born = time.Now()     // the release below may take long
		release(client, ended)
	}
}

// release closes the client of a dead engine once the engine's process has ended, if necessary in the
// background.
func release(client Client, ended <-chan struct{}) {
	closeIt := func() {
		<-ended // the engine's process may use the client's resources until it ends
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

// watch returns a channel that is closed when an engine's process ends. At this time, the threads of this
// process also get real-time priority, because guests wait for the next engine. release ends the priority.
func watch(client Client) (ended <-chan struct{}) {
	c := make(chan struct{})
	go func() {
		defer close(c)
		runtime.LockOSThread() // without UnlockOSThread, the thread ends when the goroutine ends
		_ = cpu.UrgentThread() // error ignored: without the privilege the thread has normal priority
		client.Wait()
		_ = cpu.Urgent()
	}()
	return c
}

// replaceDead starts an engine in place of a dead one. The new engine gets all state, and the dead
// engine's counts are added to the statistics. It returns false if no engine can be started.
func (es *Engines) replaceDead(dead Client, died time.Time) bool {
	return es.configuration.Update(func(tx *change.Tx) error { return es.replace(tx, dead, died) }) == nil
}

// replace does the work of replaceDead in a transaction. It returns an error if no engine can be
// started.
func (es *Engines) replace(tx *change.Tx, dead Client, died time.Time) error {
	es.present.set(nil)
	if err := es.endOld(tx, dead); err != nil { // a dead engine's threads must not use devices any more
		es.log.Error("the old engine cannot be ended", "error", err)
	}
	if hang := es.guard.hang.Swap(nil); hang != nil { // blames once, however many starts fail
		es.ports.Blame(tx, hang)
	}
	client, w, err := es.spawn(tx, es.pipeline.Workers().Memory())
	if err != nil {
		es.log.Error("no engine can be started, trying again", "error", err)
		return err
	}
	forwarding := time.Since(died)
	es.pipeline.EndUpcalls(tx)
	guard, old := es.guard, es.pipeline.Replace(tx, w)
	es.adoptEngine(tx, client, w, true)
	ports := time.Since(died)
	<-guard.done
	old.Memory().Close()
	es.trouble.Store(nil)
	es.log.Info("engine replaced", "pid", client.PID(), "ms", ports.Milliseconds(), "workers_ms", forwarding.Milliseconds(), "megaflows", es.pipeline.Counts().Megaflows)
	return nil
}

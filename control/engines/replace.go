// SPDX-License-Identifier: Apache-2.0

package engines

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"time"

	"weft/control/change"
	"weft/control/loop"
	"weft/control/workers"
	"weft/engine"
	"weft/internal/cpu"
)

// This file replaces the running engine when the control process starts, after an upgrade or a change of
// settings. The order of the steps keeps the old engine until the next one is known to start:
//
//  1. A rehearsal starts workers on memory of their own.
//  2. A spare engine starts, and waits for the old engine's end.
//  3. The old engine's workers halt. Guests wait from now on.
//  4. The spare engine starts workers, and gets ports and flows.
//  5. The old engine ends.

// provePause is the pause between two attempts to prove that an engine can start; tests
// shorten it.
var provePause = 5 * time.Second

// prove waits until a new engine process has shown that it can start, which then becomes the spare engine.
// While it cannot start, prove tries again every provePause. It returns an error only when ctx ends. If
// the old engine ends meanwhile, no engine needs protection any more, and prove returns without a spare
// engine.
func (es *Engines) prove(ctx context.Context, old Client) error {
	for {
		err := es.proveOnce(old)
		if err == nil {
			es.trouble.Store(nil)
			return nil
		}
		reason := fmt.Sprintf("the next engine cannot start: %v; the old engine, pid %d, version %v, forwards known flows meanwhile; weftd tries again every %v",
			err, old.PID(), old.Build(), provePause)
		es.log.Error("the next engine cannot start, the old one forwards on", "error", err, "old", old.PID(), "version", old.Build().String(), "retry_s", provePause.Seconds())
		es.delay(reason)
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-old.Gone():
			return nil
		case <-time.After(provePause):
		}
	}
}

func (es *Engines) proveOnce(old Client) error {
	exe := es.image.path()
	if err := es.launcher.Rehearse(exe, es.dir, es.start); err != nil {
		return err
	}
	engine.RemoveSockets(es.dir, old.PID())
	spare, err := es.launcher.Prepare(exe, es.dir, len(es.start.Cores))
	if err != nil || spare == nil {
		return err
	}
	if err := spare.AwaitReady(); err != nil {
		return err
	}
	es.spare = spare
	return nil
}

// delay tells API clients, and Setup.Delayed, why the start waits.
func (es *Engines) delay(reason string) {
	es.SetTrouble(reason)
	if es.delayed != nil {
		es.delayed(reason)
	}
}

// replaceDifferent replaces a running engine that is of another build or has other settings. If no
// engine runs, it starts the first one. The devices of the old engine continue where they stopped.
//
// After an error the inherited memory stays mapped until the process ends, because metrics and
// requests may still read it through the pipeline.
func (es *Engines) replaceDifferent(ctx context.Context, tx *change.Tx, inherited *inheritance) error {
	memory, err := es.newMemory(inherited.old()) // before guests wait
	if err != nil {
		return err
	}
	if inherited.memory != nil {
		es.ports.SetTunnels(tx)
		es.pipeline.Recover(tx)
	}
	if inherited.client != nil {
		runtime.GC() // so that no collection falls into the pause
	}
	began, old, halted := time.Now(), inherited.client, false
	if old != nil {
		_ = cpu.Urgent() // error ignored: without the privilege the threads have normal priority
		defer func() { _ = cpu.ShortSlices() }()
		if halted, err = es.releaseRings(tx, old); err != nil {
			memory.Close()
			return err
		}
	}
	if inherited.counters != nil && inherited.memory == nil {
		es.pipeline.ForgetSlots()
	}
	client, w, err := es.startOn(tx, memory)
	if err != nil && old != nil {
		client, w, err = es.startAgain(ctx, tx, inherited.old(), err)
	}
	if err != nil {
		return err
	}
	w.Connections().Watch(0, nil)
	guard := es.guard
	if inherited.memory != nil { // credits the counts of the old engine
		es.pipeline.Replace(tx, w)
	}
	es.adoptEngine(tx, client, w, old != nil)
	es.log.Info("engine started", "pid", client.PID(), "cores", es.start.Cores, "ms", time.Since(began).Milliseconds())
	if halted {
		es.endHalted(old)
	}
	if inherited.memory != nil {
		<-guard.done // before the memory is unmapped
	}
	inherited.close()
	return nil
}

// releaseRings makes the old engine stop using the rings of all ports, so that the next engine can use
// them. halted says that the old engine's workers have stopped but its process still exists. The
// caller then ends the process with endHalted when the next engine serves, so that guests do not wait
// for that.
func (es *Engines) releaseRings(tx *change.Tx, old Client) (halted bool, err error) {
	err = es.answered(old, old.Halt)
	if err == nil {
		return true, nil
	}
	if !errors.Is(err, engine.ErrGone) { // earlier versions refuse
		es.log.Info("the old engine is killed without a halt, frames that its workers handle may be lost", "error", err)
	}
	if err := es.endOld(tx, old); err != nil {
		return false, err
	}
	old.Close()
	return false, nil
}

// endHalted kills a halted engine whose successor already serves the guests.
func (es *Engines) endHalted(old Client) {
	_ = cpu.ShortSlices() // error ignored: without it, other processes wait longer for a core
	if err := old.Kill(); err != nil {
		es.log.Error("the old engine, which is halted, cannot be ended", "pid", old.PID(), "error", err)
	}
	old.Close()
}

// startAgain tries to start an engine until ctx ends. The old engine has ended, and the start of a new one
// has failed with err, so no engine serves the devices. The new engine gets the tracked connections from
// the memory of the old one.
func (es *Engines) startAgain(ctx context.Context, tx *change.Tx, old *engine.Memory, err error) (client Client, w *workers.Workers, _ error) {
	for pause := leastRespawnPause; err != nil; pause = min(2*pause, mostRespawnPause) {
		es.log.Error("no engine can be started, trying again", "error", err)
		es.delay(fmt.Sprintf("no engine can be started: %v; weftd tries again", err))
		if !loop.Sleep(ctx, pause) {
			return nil, nil, context.Cause(ctx)
		}
		client, w, err = es.spawn(tx, old)
	}
	return client, w, nil
}

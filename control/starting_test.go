// SPDX-License-Identifier: Apache-2.0

package control

import (
	"context"
	"errors"
	"os/exec"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"weft/api"
	"weft/control/engines"
	"weft/control/engines/enginetest"
	"weft/engine"
	"weft/internal/waitfor"
)

// silent is a fake engine that answers Recall only after the channel "answer" is closed.
type silent struct {
	*enginetest.Engine
	requests, answer chan struct{}
	pending          atomic.Pointer[engine.Pending]
	pid              int // 0: the process of the test
}

func (s *silent) PID() int {
	if s.pid != 0 {
		return s.pid
	}
	return s.Engine.PID()
}

func (s *silent) Recall() ([]engine.Kept, error) {
	close(s.requests)
	select {
	case <-s.Gone():
		return nil, engine.ErrGone
	case <-s.answer:
		return s.Engine.Recall()
	}
}

func (s *silent) Pending() engine.Pending { return *s.pending.Load() }

// restartOver restarts control while the engine is silent. It closes the channel "begun" when the start
// has ended.
func (f *fakes) restartOver(pending engine.Pending) (s *silent, begun chan struct{}) {
	return f.restartOverPID(pending, 0)
}

func (f *fakes) restartOverPID(pending engine.Pending, pid int) (s *silent, begun chan struct{}) {
	f.die()
	s = &silent{Engine: f.last(), requests: make(chan struct{}), answer: make(chan struct{}), pid: pid}
	s.pending.Store(&pending)
	f.launcher.connect = func() (engines.Client, error) { return s, nil }
	begun = make(chan struct{})
	go func() {
		defer close(begun)
		f.begin()
	}()
	<-s.requests
	return s, begun
}

// A request during a slow start gets an error that names the cause. Later requests
// succeed.
func TestRequestsDuringStart(t *testing.T) {
	f := newFakes(t)
	s, begun := f.restartOver(engine.Pending{})
	client, err := api.NewClient(f.config.Socket)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := client.Show(); err == nil || !strings.Contains(err.Error(), "weftd is starting") {
		t.Errorf("error %v", err)
	}
	close(s.answer)
	<-begun
	if _, err := client.Show(); err != nil {
		t.Error(err)
	}
}

// At its start, control replaces an engine that does not answer Recall. The watchdog does not count the
// time in which a thread of the engine waits for a core, as threads of the test often do. So the engine
// has the process ID of a process that sleeps.
func TestHungEngineAtStart(t *testing.T) {
	f := newFakes(t)
	sleeper := exec.Command("sleep", "600")
	if err := sleeper.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = sleeper.Process.Kill(); _ = sleeper.Wait() }()
	s, begun := f.restartOverPID(engine.Pending{Number: 1, Op: engine.OpRecall, Since: time.Now()}, sleeper.Process.Pid)
	<-begun
	if f.last() == s.Engine || !s.HasEnded() {
		t.Error("the hung engine was not replaced")
	}
	if reason := f.d.engines.Troubled(); reason != "" {
		t.Errorf("trouble that is over: %s", reason)
	}
}

// If the engine does not answer a request, the requests that wait behind it get an error with this
// cause.
func TestRequestsDuringUnansweredRequest(t *testing.T) {
	f := newFakes(t)
	s, begun := f.restartOver(engine.Pending{})
	close(s.answer)
	<-begun
	s.pending.Store(&engine.Pending{Number: 1, Op: engine.OpAttach, Port: 7, Since: time.Now().Add(-time.Hour)})
	tx := f.d.configuration.Begin()
	defer tx.Commit()
	client, err := api.NewClient(f.config.Socket)
	if err != nil {
		t.Fatal(err)
	}
	waitfor.True(t, "the cause is named", func() bool {
		err := client.DelPort("p2")
		return err != nil && strings.Contains(err.Error(), `has not answered the request "attach"`)
	})
}

// If no new engine can start, the old one stays, and the API and the probe tell the reason. Control can
// then be stopped, and control with the former settings takes the old engine over.
func TestNextEngineCannotStart(t *testing.T) {
	f := newFakes(t)
	old, before := f.last(), f.config
	f.die()
	var delays atomic.Int32
	f.config.SpinUS, f.config.Delayed = 7, func(string) { delays.Add(1) }
	f.launcher.rehearse = func() error { return errors.New("a sentinel") }
	d, err := newDaemon(f.config)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancelCause(context.Background())
	begun := make(chan error, 1)
	go func() { begun <- d.begin(ctx) }()
	waitfor.True(t, "the start is delayed", func() bool { return delays.Load() > 0 })
	client, err := api.NewClient(f.config.Socket)
	if err != nil {
		t.Fatal(err)
	}
	const want = "weftd is starting: the next engine cannot start: a sentinel"
	if _, err := client.Show(); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("show: %v", err)
	}
	if reason := d.rest.NotReady(); !strings.Contains(reason, want) {
		t.Errorf("not ready: %q", reason)
	}
	stop(nil)
	if err := d.giveUp(ctx, stop, <-begun); err != nil {
		t.Error(err)
	}
	if old.HasEnded() {
		t.Error("the old engine has ended")
	}
	f.config, f.launcher.rehearse = before, nil
	f.begin()
	if f.last() != old || f.d.engines.PID() != old.PID() {
		t.Error("the old engine was not taken over")
	}
}

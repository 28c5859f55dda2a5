// SPDX-License-Identifier: Apache-2.0

package control

import (
	"os/exec"
	"testing"
	"time"

	"weft/control/engines"
	"weft/control/engines/enginetest"
	"weft/control/workers/workertest"
	"weft/engine"
	"weft/internal/waitfor"
)

// dying is an engine that dies while control sends it ports and megaflows.
type dying struct{ *enginetest.Engine }

func (e dying) Start(s engine.Start, m *engine.Memory) error {
	err := e.Engine.Start(s, m)
	for _, w := range e.Workers {
		w.Stalled.Store(true) // the worker takes no command before the engine dies
	}
	time.AfterFunc(20*time.Millisecond, func() { _ = e.Kill() })
	return err
}

// If an engine dies while control sends it ports and megaflows, it is replaced.
func TestEngineDiesDuringReplay(t *testing.T) {
	f := newFakes(t)
	f.vxlanPorts(2)
	f.add("in_port=1,actions=2")
	f.worker().Frame(workertest.UDPKey(1, 1, 2, 9), 100)
	f.settle()
	left := 2
	f.launcher.spawn = func() (engines.Client, error) {
		c, err := f.launcher.spawnFake()
		if left--; left >= 0 && err == nil {
			return dying{c.(*enginetest.Engine)}, nil
		}
		return c, err
	}
	first := f.last()
	_ = first.Kill()
	waitfor.True(t, "the next engine has the ports and megaflows", func() bool {
		tx := f.d.configuration.Begin() // waits while an engine is being started
		defer tx.Commit()
		known, key := false, workertest.UDPKey(1, 1, 2, 9)
		f.worker().On(func() { _, known = f.worker().Lookup(&key) })
		return known && f.last() != first
	})
}

// stopped is an engine that hangs when control tells it to start its workers. pid is a process that does
// nothing, as the process of such an engine.
type stopped struct {
	*enginetest.Engine
	pid   int
	since time.Time
}

func (e stopped) PID() int { return e.pid }

func (e stopped) Start(engine.Start, *engine.Memory) error {
	<-e.Gone()
	return engine.ErrGone
}

func (e stopped) Pending() engine.Pending {
	return engine.Pending{Number: 1, Op: engine.OpStart, Since: e.since}
}

// An engine that hangs when control tells it to start its workers is killed, and another
// engine takes its place.
func TestEngineHangsInStart(t *testing.T) {
	f := newFakes(t)
	f.vxlanPorts(2)
	f.add("in_port=1,actions=2")
	f.settle()
	idle := exec.Command("sleep", "3600")
	if err := idle.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = idle.Process.Kill()
		_ = idle.Wait()
	})
	hung := stopped{enginetest.New(), idle.Process.Pid, time.Now()}
	f.launcher.spawn = func() (engines.Client, error) {
		f.launcher.spawn = nil
		return hung, nil
	}
	first := f.last()
	_ = first.Kill()
	f.awaitReplacement(first)
	if !hung.HasEnded() {
		t.Error("the hung engine is not killed")
	}
	f.worker().Frame(workertest.UDPKey(1, 1, 2, 9), 100)
	f.settle()
	f.want("in_port=p1", "1/100")
}

// leaving is an engine that dies shortly after control has asked it for its state (Recall).
type leaving struct{ *enginetest.Engine }

func (e leaving) Recall() ([]engine.Kept, error) {
	defer time.AfterFunc(20*time.Millisecond, func() { _ = e.Kill() })
	return e.Engine.Recall()
}

// If an engine dies while a new control process takes it over, it is replaced.
func TestEngineDiesDuringTakeover(t *testing.T) {
	f := newFakes(t)
	f.vxlanPorts(2)
	f.add("in_port=1,actions=2")
	f.worker().Frame(workertest.UDPKey(1, 1, 2, 9), 100)
	f.settle()
	old := f.last()
	f.die()
	old.Workers[0].Stalled.Store(true)
	f.launcher.connect = func() (engines.Client, error) { return leaving{old}, nil }
	begun := make(chan struct{})
	go func() {
		defer close(begun)
		f.begin()
	}()
	select {
	case <-begun:
	case <-time.After(30 * time.Second):
		t.Fatal("control hangs in the take-over of an engine that has died")
	}
	waitfor.True(t, "another engine takes its place", func() bool {
		tx := f.d.configuration.Begin() // no engine is being started while the test has this lock
		defer tx.Commit()
		return f.last() != old
	})
	f.worker().Frame(workertest.UDPKey(1, 1, 2, 9), 100)
	f.settle()
	f.want("in_port=p1", "2/200")
}

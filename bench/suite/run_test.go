// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"weft/e2e/lab"
)

// limited ends a turn that hangs, and returns an error. The turn then cannot start programs any more.
func TestTurnIsLimited(t *testing.T) {
	for name, c := range map[string]struct {
		cancel bool
		want   string
	}{"too long": {want: "not done within"}, "interrupted": {cancel: true, want: "canceled"}} {
		r := &run{dir: t.TempDir()}
		ctx, cancel := context.WithCancel(t.Context())
		limit := time.Hour
		if !c.cancel {
			limit = 4 * time.Second // long enough for the program to start
		}
		var last string
		r.atEnd(func() { last = "made first" })
		_, err := r.limited(ctx, limit, func() float64 {
			p := r.start("hangs", "sleep", "1000")
			r.atEnd(func() { last = "made later" })
			if c.cancel {
				cancel()
			}
			<-p.done
			lab.Check(p.alive())
			return 1
		})
		cancel()
		if err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), "sleep ended") {
			t.Errorf("%s: %v", name, err)
		}
		if last != "made first" {
			t.Errorf("%s: %q was ended last", name, last)
		}
		if err := lab.Attempt(func() { r.start("late", "true") }); !errors.Is(err, errOver) {
			t.Errorf("%s: begins when the turn is over: %v", name, err)
		}
		late := false
		if r.atEnd(func() { late = true }); !late {
			t.Errorf("%s: what was made late is not ended", name)
		}
	}
	figure, err := (&run{}).limited(t.Context(), time.Hour, func() float64 { return 7 })
	if figure != 7 || err != nil {
		t.Errorf("a turn in time: %v, %v", figure, err)
	}
}

// A program keeps running when the thread that has called start ends.
func TestProgramsOutliveThreads(t *testing.T) {
	r := &run{dir: t.TempDir()}
	defer r.end()
	const threads = 4 // one of them may be the process's first thread, which never ends
	started := make(chan *process, threads)
	var all sync.WaitGroup
	all.Add(threads)
	for i := range threads {
		go func() {
			runtime.LockOSThread() // without UnlockOSThread, the thread ends with its goroutine
			var p *process
			if err := lab.Attempt(func() { p = r.start(fmt.Sprint("stays", i), "sleep", "1000") }); err != nil {
				t.Error(err)
			}
			started <- p
			all.Done()
			all.Wait() // while all goroutines wait, each has a thread of its own
		}()
	}
	all.Wait()
	time.Sleep(100 * time.Millisecond)
	for range threads {
		if p := <-started; p == nil || p.alive() != nil {
			t.Error("it died with the thread")
		}
	}
}

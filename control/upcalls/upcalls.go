// SPDX-License-Identifier: Apache-2.0

// Package upcalls reads the upcalls of one engine's workers. It hands misses to the
// pipeline in batches, in which the senders take turns, and other upcalls one by one.
//
// A goroutine for each worker owns the worker's ring and its queue of misses, so the
// package has no lock. It holds none while it calls Setup.Miss and Setup.Other, which
// may take any lock except the lock of changes: Close waits for them, and its caller
// may hold the lock of changes.
package upcalls

import (
	"log/slog"
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"weft/control/loop"
	"weft/control/workers"
	"weft/datapath"
	"weft/internal/shm"
)

// Batch limits the misses of one call of Setup.Miss, which answers them under one lock.
// A larger batch would delay its first miss.
const Batch = 32

// Setup has the receivers of upcalls. Both are called from one goroutine for each
// worker.
type Setup struct {
	// Miss answers misses of a worker. misses is valid until Miss returns.
	Miss func(worker int, misses []datapath.Upcall)
	// Other takes an upcall of another kind.
	Other func(worker int, up datapath.Upcall)
	Log   *slog.Logger
}

// Upcalls serves one engine's workers, with one goroutine for each worker. Another
// goroutine wakes them up through the workers' eventfd.
type Upcalls struct {
	setup   Setup
	workers *workers.Workers
	event   *os.File
	wake    []chan struct{} // index: worker
	stop    chan struct{}
	stopped sync.WaitGroup
}

// Serve starts to read the upcalls of w. The caller calls Close while w is mapped.
func Serve(w *workers.Workers, setup Setup) (*Upcalls, error) {
	fd, err := unix.FcntlInt(uintptr(w.Memory().UpcallEvent), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	u := &Upcalls{setup: setup, workers: w, event: os.NewFile(uintptr(fd), "upcalls"), stop: make(chan struct{})}
	for i := range w.Shared() {
		u.wake = append(u.wake, make(chan struct{}, 1))
		u.stopped.Add(1)
		go u.serve(i)
	}
	go u.watch()
	return u, nil
}

// Close ends the goroutines and waits for those in Setup.Miss. The caller holds no lock
// that Setup.Miss takes.
func (u *Upcalls) Close() {
	close(u.stop)
	u.event.Close() // ends watch
	u.stopped.Wait()
}

func (u *Upcalls) watch() {
	var count [8]byte
	for {
		if _, err := u.event.Read(count[:]); err != nil {
			return // closed
		}
		for _, wake := range u.wake {
			loop.Notify(wake)
		}
	}
}

// serve reads the upcalls of worker i: misses in turn by sender, others in order of
// arrival.
func (u *Upcalls) serve(i int) {
	defer u.stopped.Done()
	ring := shm.NewConsumer(u.workers.Shared()[i].Upcalls)
	q := newMissQueue(ring)
	misses := make([]datapath.Upcall, 0, Batch)
	for {
		q.take(func(msg []byte) { u.take(i, msg) })
		misses = q.pop(misses[:0], Batch)
		u.setup.Miss(i, misses)
		q.answered()
		select {
		case <-u.stop:
			return
		default:
		}
		if q.waiting() || !ring.Sleep() {
			continue
		}
		select {
		case <-u.wake[i]:
		case <-u.stop:
			return
		}
		ring.Awake()
	}
}

func (u *Upcalls) take(worker int, msg []byte) {
	up, err := datapath.ParseUpcall(msg)
	if err != nil {
		u.setup.Log.Error("malformed upcall", "worker", worker, "error", err)
		return
	}
	u.setup.Other(worker, up)
}

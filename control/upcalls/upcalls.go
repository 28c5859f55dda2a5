// SPDX-License-Identifier: Apache-2.0

// Package upcalls reads the upcalls of one engine's workers. It passes misses to the
// pipeline in batches, in turn by the time that the misses of each sender take. It passes
// other upcalls one by one.
//
// A goroutine for each worker owns the worker's ring and its queue of misses, so the
// package has no lock. The goroutine holds no lock while it calls Setup.Miss and
// Setup.Other. These functions may take any lock except the configuration lock: Close
// waits for them, and the caller of Close may hold the configuration lock.
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

// Batch is the largest number of misses of one call of Setup.Miss, which answers them
// under one lock. A larger batch would delay its first miss.
const Batch = 32

// Setup has the functions that receive upcalls. One goroutine for each worker calls
// them.
type Setup struct {
	// Miss answers misses of the worker with this number, the first ones if all would take
	// too long, and at least one. It appends the time that each answered one took in
	// nanoseconds to costs. misses is valid until Miss returns.
	Miss func(worker int, misses []datapath.Upcall, costs []uint64) []uint64
	// Other takes an upcall of another kind.
	Other func(worker int, up datapath.Upcall)
	Log   *slog.Logger
}

// Upcalls reads the upcalls of one engine's workers, with one goroutine for each
// worker. Another goroutine waits on the workers' eventfd and wakes these goroutines
// up.
type Upcalls struct {
	setup   Setup
	workers *workers.Workers
	event   *os.File
	wake    []chan struct{} // index: worker
	stop    chan struct{}
	stopped sync.WaitGroup
}

// Serve starts to read the upcalls of the workers w. The caller calls Close before it
// unmaps w.
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

// Close ends the goroutines, and waits for running calls of Setup.Miss. The caller
// holds no lock that Setup.Miss takes.
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

// serve reads the upcalls of worker i. It handles misses in turn by sender,
// and other upcalls in order of arrival.
func (u *Upcalls) serve(i int) {
	defer u.stopped.Done()
	ring := shm.NewConsumer(u.workers.Shared()[i].Upcalls)
	q := newMissQueue(ring)
	misses, costs := make([]datapath.Upcall, 0, Batch), make([]uint64, 0, Batch)
	for {
		q.take(func(msg []byte) { u.take(i, msg) })
		misses = q.pop(misses[:0], Batch)
		costs = u.setup.Miss(i, misses, costs[:0])
		q.answered(costs)
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

// SPDX-License-Identifier: Apache-2.0

package pipeline

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

// missBatch is the largest number of misses of one call of upcallSetup.Miss, which answers them
// under one lock. A larger batch would delay its first miss.
const missBatch = 32

// upcallSetup has the functions that handle upcalls. Each worker has a goroutine that calls them.
type upcallSetup struct {
	// Miss answers misses of one worker, in order. If they take too long, it may stop before the last
	// one, but it answers at least one. For each answered miss it appends the nanoseconds that it
	// took to costs, and returns costs. misses is valid until Miss returns.
	Miss func(worker int, misses []datapath.Upcall, costs []uint64) []uint64
	// Other handles an upcall that is not a miss.
	Other func(worker int, up datapath.Upcall)
	Log   *slog.Logger
}

// upcalls reads the upcalls of the workers of one engine, with a goroutine for each worker. It
// passes misses on in batches, in the order that missQueue decides, and other upcalls one by one.
// Another goroutine waits on the workers' eventfd and wakes these goroutines up.
//
// The goroutine of a worker is the only one that uses the worker's ring and queue of misses, so
// upcalls has no lock. The goroutine holds no lock while it calls upcallSetup.Miss and
// upcallSetup.Other. These functions may take any lock except the configuration lock: Close waits
// for them, and the caller of Close may hold the configuration lock.
type upcalls struct {
	setup   upcallSetup
	workers *workers.Workers
	event   *os.File
	wake    []chan struct{} // index: worker
	stop    chan struct{}
	stopped sync.WaitGroup
}

// serveUpcalls starts to read the upcalls of the workers w. The caller calls Close before it
// unmaps w.
func serveUpcalls(w *workers.Workers, setup upcallSetup) (*upcalls, error) {
	fd, err := unix.FcntlInt(uintptr(w.Memory().UpcallEvent), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	u := &upcalls{setup: setup, workers: w, event: os.NewFile(uintptr(fd), "upcalls"), stop: make(chan struct{})}
	for i := range w.Shared() {
		u.wake = append(u.wake, make(chan struct{}, 1))
		u.stopped.Add(1)
		go u.serve(i)
	}
	go u.watch()
	return u, nil
}

// Close ends the goroutines, and waits for running calls of upcallSetup.Miss and upcallSetup.Other.
// The caller holds no lock that these functions take.
func (u *upcalls) Close() {
	close(u.stop)
	u.event.Close() // ends watch
	u.stopped.Wait()
}

func (u *upcalls) watch() {
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

// serve reads the upcalls of worker i. It answers the misses in the order of missQueue, and handles
// other upcalls in order of arrival.
func (u *upcalls) serve(i int) {
	defer u.stopped.Done()
	ring := shm.NewConsumer(u.workers.Shared()[i].Upcalls)
	q := newMissQueue(ring)
	misses, costs := make([]datapath.Upcall, 0, missBatch), make([]uint64, 0, missBatch)
	for {
		q.take(func(msg []byte) { u.take(i, msg) })
		misses = q.pop(misses[:0], missBatch)
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

func (u *upcalls) take(worker int, msg []byte) {
	up, err := datapath.ParseUpcall(msg)
	if err != nil {
		u.setup.Log.Error("malformed upcall", "worker", worker, "error", err)
		return
	}
	u.setup.Other(worker, up)
}

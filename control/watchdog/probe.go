// SPDX-License-Identifier: Apache-2.0

package watchdog

import (
	"math"
	"os"
	"runtime"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// This file finds out in whose memory a worker hangs while it copies a frame between the memories of
// two ports.
//
// A front end can make a worker wait by punching a hole into the file of its memory: while the kernel
// frees the pages, an access to one of them waits (mm/shmem.c, shmem_fault). The kernel holds the lock
// of the file's inode meanwhile, also while a file is truncated. lseek(2) with SEEK_DATA waits for the
// same lock. So while a worker stands still, one thread for each port calls lseek on the port's files.
// The port whose thread waits owns the memory in which the worker hangs. A front end cannot lock the
// file of another one, because it has no descriptor of it.

const (
	// probeAfter is the standstill of a worker after which the probes begin. They begin sooner if the
	// worker's thread waits in the kernel.
	probeAfter = 40 * time.Millisecond
	// leastProbe is how long a probe must run to prove that a file is locked. leastSearch is how long it
	// must run to prove that no file is locked.
	leastProbe  = 5 * time.Millisecond
	leastSearch = 20 * time.Millisecond
	// lockedShare decides when a file counts as locked: when the calls of lseek have waited for at least
	// 1/lockedShare of the probe's time.
	lockedShare = 2
	// mostProof is the time for which a hung engine may run beyond WorkerLimit, so that a probe can prove
	// in whose memory the worker hangs.
	mostProof = WorkerLimit
	// probeRest is the pause between two rounds over the files.
	probeRest = 500 * time.Microsecond
)

// probe measures for how long the files of one port's memory are locked.
type probe struct {
	port uint32
	seek func(fd int)                     // returns when the file is not locked
	self func(tid uint64) (thread, error) // reads the kernel's accounting of a thread of this process
	now  func() time.Duration

	mu       sync.Mutex
	ended    bool
	began    bool
	beganAt  time.Duration
	tid      uint64
	locked   time.Duration // sum of the waits in calls of seek that have returned
	inCall   bool
	calledAt time.Duration
	called   thread // accounting of the probe's thread when it called seek last
}

// startProbe starts the probe of a port on a thread of its own. files returns duplicates of the
// descriptors of all files whose memory a worker accesses for the port. The probe closes them.
func startProbe(port uint32, files func(port uint32) []int) *probe {
	start := time.Now()
	p := &probe{port: port, seek: seekData, now: func() time.Duration { return time.Since(start) },
		self: func(tid uint64) (thread, error) { return readThread(os.Getpid(), tid) }}
	go func() {
		// The kernel's accounting is by thread, so the goroutine keeps its thread. It never unlocks the
		// thread, so both end together. That may take as long as a front end locks the file for which
		// lseek waits.
		runtime.LockOSThread()
		fds := files(port)
		defer func() {
			for _, fd := range fds {
				unix.Close(fd)
			}
		}()
		p.run(uint64(unix.Gettid()), fds, func() { time.Sleep(probeRest) })
	}()
	return p
}

// seekData waits until nobody holds the lock of the file's inode. It changes nothing: no file has data
// at the largest offset, so the call of lseek fails.
func seekData(fd int) { _, _ = unix.Seek(fd, math.MaxInt64, unix.SEEK_DATA) }

// run calls seek on all files, again and again, until end is called. It calls rest between two rounds.
func (p *probe) run(tid uint64, fds []int, rest func()) {
	p.mu.Lock()
	p.tid, p.began, p.beganAt = tid, true, p.now()
	p.mu.Unlock()
	for len(fds) > 0 {
		for _, fd := range fds {
			if !p.enter() {
				return
			}
			p.seek(fd)
			p.leave()
		}
		rest()
	}
}

// enter notes the beginning of a call of seek. It returns false if the probe has ended.
func (p *probe) enter() bool {
	t, err := p.self(p.tid)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.called, p.calledAt, p.inCall = t, p.now(), err == nil
	return !p.ended
}

func (p *probe) leave() {
	t, err := p.self(p.tid)
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.inCall && err == nil {
		p.locked += p.waited(t)
	}
	p.inCall = false
}

// waited returns the time since seek was called, without the time in which the thread waited for a
// core. t is the thread's present accounting. The caller holds mu.
func (p *probe) waited(t thread) time.Duration {
	return p.now() - p.calledAt - time.Duration(difference(t.waitNS, p.called.waitNS))
}

// lockedFor returns for how long the files were locked, and for how long the probe has run.
func (p *probe) lockedFor() (locked, probed time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.began {
		return 0, 0
	}
	locked, probed = p.locked, p.now()-p.beganAt
	if !p.inCall {
		return locked, probed
	}
	switch t, err := p.self(p.tid); {
	case err != nil:
	case t.runnable(): // the thread spins for the lock, or waits for a core, which is not in waitNS yet
		locked += time.Duration(difference(t.runNS, p.called.runNS))
	default:
		locked += p.waited(t)
	}
	return locked, probed
}

// proves reports whether the front end certainly locks the files of its port's memory. lseek waits while
// the kernel holds the lock of a file's inode. The proof is a probe of at least leastProbe in which lseek
// has waited for at least 1/lockedShare of the time.
func (p *probe) proves() bool {
	locked, probed := p.lockedFor()
	return probed >= leastProbe && locked >= probed/lockedShare
}

func (p *probe) end() {
	p.mu.Lock()
	p.ended = true
	p.mu.Unlock()
}

// probes has a probe for each port whose memory one hung worker may be using.
type probes []*probe

// add calls newProbe for the port of each suspect, unless the port has a probe already. A suspect is a
// queue that a hung worker is using, so the worker may hang in the memory of the queue's port.
func (ps *probes) add(suspects []Suspect, newProbe func(port uint32) *probe) {
	for _, s := range suspects {
		if !slices.ContainsFunc(*ps, func(p *probe) bool { return p.port == s.Port }) {
			*ps = append(*ps, newProbe(s.Port))
		}
	}
}

func (ps *probes) end() {
	for _, p := range *ps {
		p.end()
	}
	*ps = nil
}

// complete reports whether every probe has run long enough (leastSearch) to prove that no file is locked.
func (ps probes) complete() bool {
	for _, p := range ps {
		if _, probed := p.lockedFor(); probed < leastSearch {
			return false
		}
	}
	return true
}

// owners returns the ports whose front ends have locked the files of their memory, as the probes prove.
func (ps probes) owners() (ports []uint32) {
	for _, p := range ps {
		if p.proves() {
			ports = append(ports, p.port)
		}
	}
	return ports
}

// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/procfs"
	"golang.org/x/sys/unix"

	"weft/api"
	"weft/bench"
	"weft/internal/cpu"
	"weft/vhost/vhosttest"
)

// machine measures how late timers wake threads on each core, independently of the switch.
type machine struct {
	longest atomic.Int64 // longest delay since the start, in nanoseconds
	recent  atomic.Int64 // longest delay since the last call of lately, in nanoseconds
	stop    atomic.Bool
	ended   sync.WaitGroup
}

const probeRest = 200 * time.Microsecond

func watchMachine() *machine {
	m := &machine{}
	cores, err := cpu.Allowed()
	if err != nil {
		cores = []int{-1}
	}
	for _, core := range cores {
		m.ended.Add(1)
		go func() {
			defer m.ended.Done()
			runtime.LockOSThread() // the pinned thread ends with its goroutine, because it is never unlocked
			if core >= 0 {
				_ = cpu.Pin(core)
			}
			rest := unix.NsecToTimespec(int64(probeRest))
			for !m.stop.Load() {
				begin := time.Now()
				_ = unix.Nanosleep(&rest, nil)
				late := int64(time.Since(begin) - probeRest)
				for _, longest := range []*atomic.Int64{&m.longest, &m.recent} {
					if late > longest.Load() {
						// a race may store the shorter of two delays, which makes the limits of an
						// attack only stricter
						longest.Store(late)
					}
				}
			}
		}()
	}
	return m
}

// lately returns the longest delay since its last call.
func (m *machine) lately() time.Duration { return time.Duration(m.recent.Swap(0)) }

func (m *machine) end() time.Duration {
	m.stop.Store(true)
	m.ended.Wait()
	return time.Duration(m.longest.Load())
}

// prober requests the switch's state from the API again and again, and records the time of the slowest
// answer.
type prober struct {
	client *api.Client
	stop   chan struct{}
	ended  chan struct{}

	mu      sync.Mutex
	longest time.Duration
	answers int
	failed  error
	since   time.Time // start of the request that waits for an answer; zero: there is none
}

const probeGap = 10 * time.Millisecond

func probe(c *api.Client) *prober {
	p := &prober{client: c, stop: make(chan struct{}), ended: make(chan struct{})}
	go func() {
		defer close(p.ended)
		for {
			select {
			case <-p.stop:
				return
			case <-time.After(probeGap):
			}
			p.ask()
		}
	}()
	return p
}

func (p *prober) ask() {
	begin := time.Now()
	p.mu.Lock()
	p.since = begin
	p.mu.Unlock()
	_, err := p.client.Show()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.since = time.Time{}
	p.longest = max(p.longest, time.Since(begin))
	if err != nil {
		p.failed = err
	} else {
		p.answers++
	}
}

// end stops the prober and waits for the answer to its last request. If none arrives within the time
// "patience", end returns an error, and the time since the request counts as the slowest answer.
func (p *prober) end() (slowest time.Duration, answers int, err error) {
	close(p.stop)
	select {
	case <-p.ended:
	case <-time.After(patience):
		p.mu.Lock()
		defer p.mu.Unlock()
		return time.Since(p.since), p.answers, fmt.Errorf("show has had no answer for %v", time.Since(p.since).Round(time.Second))
	}
	return p.longest, p.answers, p.failed
}

// usage has the resources that a process holds at one time.
type usage struct {
	Bytes       int64 `json:"bytes"`       // resident memory in bytes, without shared memory
	Descriptors int   `json:"descriptors"` // number of open file descriptors
	Mappings    int   `json:"mappings"`    // number of mapped files, including memfds
}

func usageOf(pid int) usage {
	var u usage
	p, _ := procfs.NewProc(pid) // error ignored: the numbers of a process that has ended are 0
	u.Descriptors, _ = p.FileDescriptorsLen()
	maps, _ := p.ProcMaps()
	for _, m := range maps {
		if strings.HasPrefix(m.Pathname, "/") {
			u.Mappings++
		}
	}
	u.Bytes = residentOf(pid)
	return u
}

// residentOf returns the resident memory of a process in bytes, without shared memory.
func residentOf(pid int) int64 { return int64(bench.Status(pid).RssAnon) }

// memoryWatch samples the resident memory of a process every memoryGap, and keeps the largest value.
type memoryWatch struct {
	stop           chan struct{}
	ended          chan struct{}
	first, largest int64
}

const memoryGap = 20 * time.Millisecond

func watchMemory(pid int) *memoryWatch {
	w := &memoryWatch{stop: make(chan struct{}), ended: make(chan struct{}), first: residentOf(pid)}
	go func() {
		defer close(w.ended)
		for {
			w.largest = max(w.largest, residentOf(pid))
			select {
			case <-w.stop:
				return
			case <-time.After(memoryGap):
			}
		}
	}()
	return w
}

func (w *memoryWatch) end() (first, largest int64) {
	close(w.stop)
	<-w.ended
	return w.first, w.largest
}

// newcomer is a guest that attaches to the switch and detaches, again and again. It measures how long
// new guests need to attach during an attack.
type newcomer struct {
	site  *site
	stop  chan struct{}
	ended chan struct{}

	mu      sync.Mutex
	longest time.Duration
	times   int
	failed  error
	since   time.Time // start of the attachment in progress; zero: there is none
}

const newcomerGap = 200 * time.Millisecond

const newcomerPort = "c"

func watchNewcomer(s *site) *newcomer {
	n := &newcomer{site: s, stop: make(chan struct{}), ended: make(chan struct{})}
	go func() {
		defer close(n.ended)
		for {
			n.come()
			select {
			case <-n.stop:
				return
			case <-time.After(newcomerGap):
			}
		}
	}()
	return n
}

func (n *newcomer) come() {
	g, err := vhosttest.New(vhosttest.Options{Num: 64, Features: plainFeatures})
	if err == nil {
		defer g.Close()
		begin := time.Now()
		n.mu.Lock()
		n.since = begin
		n.mu.Unlock()
		err = n.attach(g)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.longest = max(n.longest, time.Since(n.since))
	n.since = time.Time{}
	if n.times++; err != nil {
		n.failed = err
	}
}

func (n *newcomer) attach(g *vhosttest.Guest) error {
	f, err := vhosttest.Dial(n.site.socket(newcomerPort))
	if err != nil {
		return err
	}
	defer f.Close()
	if err := f.Attach(g); err != nil {
		return err
	}
	return (&guest{Guest: g, front: f, play: &play{}}).echo()
}

func (n *newcomer) end() (time.Duration, error) {
	close(n.stop)
	select {
	case <-n.ended:
	case <-time.After(2 * patience):
		n.mu.Lock()
		defer n.mu.Unlock()
		return time.Since(n.since), fmt.Errorf("a guest attaches for %v", time.Since(n.since).Round(time.Second))
	}
	return n.longest, n.failed
}

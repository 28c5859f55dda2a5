package conntrack

import (
	"encoding/binary"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"weft/internal/shm"
)

// Pages ahead of a table that grows. A page that nobody has touched costs the worker
// a fault of some microseconds, and more where the machine has to find the memory
// first. So a thread beside the workers has the pages of the next records put in
// place, and those of the index once most of them will be touched; of what only some
// connections have, if the last one that began has it. The worker that sweeps asks.

const (
	// pagesAhead is how many records have theirs at most: 5 MB, and 2 MB each of peers
	// and addresses.
	pagesAhead = 1 << 16
	// bucketsAPage bounds from below what a page of the index serves.
	bucketsAPage = 4096 / 64
)

// pages is what is in place.
type pages struct {
	event   int // the worker's to write; -1: nobody puts pages in place
	records atomic.Uint32
	asked   atomic.Bool
	closing atomic.Bool
	done    chan struct{}
}

// StartPopulating has a goroutine put pages in place until StopPopulating. Without,
// they come with their first use.
func (t *Table) StartPopulating() error {
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
	if err != nil {
		return err
	}
	t.pages.event, t.pages.done = fd, make(chan struct{})
	go t.populate()
	return nil
}

// StopPopulating ends the goroutine; no worker sweeps any more.
func (t *Table) StopPopulating() {
	if p := &t.pages; p.event >= 0 {
		p.closing.Store(true)
		p.ask()
		<-p.done
		unix.Close(p.event)
		p.event = -1
	}
}

func (p *pages) ask() {
	var one [8]byte
	binary.NativeEndian.PutUint64(one[:], 1)
	unix.Write(p.event, one[:])
}

// ahead asks for pages where the next records may soon have none. The index is
// worth it once there is a connection for every eighth of its pages.
func (t *Table) ahead() {
	p, fresh := &t.pages, t.head.fresh
	if fresh+min(fresh, pagesAhead/2) <= p.records.Load() || fresh < uint32(len(t.buckets)/bucketsAPage/8) ||
		p.records.Load() == uint32(len(t.conns)) || p.event < 0 || p.asked.Load() {
		return
	}
	p.asked.Store(true) // before the write: populate clears it behind the read
	p.ask()
}

func (t *Table) populate() {
	p := &t.pages
	defer close(p.done)
	var buf [8]byte
	for index := false; ; index = true {
		if _, err := unix.Read(p.event, buf[:]); err != nil && err != unix.EINTR || p.closing.Load() {
			return
		}
		p.asked.Store(false)
		if !index {
			shm.Populate(t.buckets)
		}
		from := p.records.Load()
		fresh := t.head.fresh
		to := min(fresh+min(4*fresh, pagesAhead), uint32(len(t.conns)))
		if from < to {
			shm.Populate(t.conns[from:to])
			shm.Populate(t.links[from:to])
			last := t.conns[max(fresh, 1)-1].tuples[0]
			if hasPeers(last.proto()) {
				shm.Populate(t.peers[from:to])
			}
			if last.ipv6() {
				shm.Populate(t.long[from:to])
			}
			p.records.Store(to)
		}
	}
}

// SPDX-License-Identifier: Apache-2.0

package conntrack

import (
	"encoding/binary"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"weft/internal/shm"
)

// In this file, a goroutine populates the pages of a growing table before workers need them, because the
// first access to a page costs a page fault of some microseconds. At its first wake-up the goroutine
// populates the index. At each wake-up it populates the next records, and their peers and addresses if the
// newest connection uses these. The worker that calls Sweep wakes it up.

const (
	// pagesAhead is the largest number of records that are populated in advance. They are 5 MB of
	// conns and links, and 2 MB each of peers and addresses.
	pagesAhead = 1 << 16
	// bucketsAPage is the number of index buckets in a page of 4 KiB.
	bucketsAPage = 4096 / 64
)

// pages is the state of the goroutine that populates pages.
type pages struct {
	event     int // eventfd that wakes the goroutine up; -1: no goroutine
	records   atomic.Uint32
	requested atomic.Bool
	closing   atomic.Bool
	done      chan struct{}
}

// StartPopulating starts a goroutine that populates pages until StopPopulating. It returns an error if the
// process cannot get an eventfd. Without the goroutine, a worker's first access to a page causes a page
// fault.
func (t *Table) StartPopulating() error {
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
	if err != nil {
		return err
	}
	t.pages.event, t.pages.done = fd, make(chan struct{})
	go t.populate()
	return nil
}

// StopPopulating ends the goroutine that populates pages. The caller makes sure that no
// worker calls Sweep any more.
func (t *Table) StopPopulating() {
	if p := &t.pages; p.event >= 0 {
		p.closing.Store(true)
		p.wake()
		<-p.done
		unix.Close(p.event)
		p.event = -1
	}
}

func (p *pages) wake() {
	var one [8]byte
	binary.NativeEndian.PutUint64(one[:], 1)
	unix.Write(p.event, one[:])
}

// requestPages wakes up the goroutine that populates pages, if the records that come next may have no pages
// yet. It does nothing for a table with few connections.
func (t *Table) requestPages() {
	p, fresh := &t.pages, t.usedRecords()
	if fresh+min(fresh, pagesAhead/2) <= p.records.Load() || fresh < uint32(len(t.buckets)/bucketsAPage/8) ||
		p.records.Load() == uint32(len(t.conns)) || p.event < 0 || p.requested.Load() {
		return
	}
	p.requested.Store(true) // set before the wake-up, because populate clears it
	p.wake()
}

// usedRecords returns the number of records that were in use at some time. It limits the field "fresh" to
// the number of records, because the field is in shared memory and may have any value.
func (t *Table) usedRecords() uint32 { return min(t.head.fresh, uint32(len(t.conns))) }

func (t *Table) populate() {
	p := &t.pages
	defer close(p.done)
	var buf [8]byte
	for index := false; ; index = true {
		if _, err := unix.Read(p.event, buf[:]); err != nil && err != unix.EINTR || p.closing.Load() {
			return
		}
		p.requested.Store(false)
		if !index {
			shm.Populate(t.buckets)
		}
		t.populateRecords()
	}
}

// populateRecords populates the records after the used ones: four times as many as are used, but at most
// pagesAhead.
func (t *Table) populateRecords() {
	p := &t.pages
	sender := p.records.Load()
	fresh := t.usedRecords()
	to := min(fresh+min(4*fresh, pagesAhead), uint32(len(t.conns)))
	if sender >= to {
		return
	}
	shm.Populate(t.conns[sender:to])
	shm.Populate(t.links[sender:to])
	last := t.conns[max(fresh, 1)-1].tuples[0]
	if hasPeers(last.proto()) {
		shm.Populate(t.peers[sender:to])
	}
	if last.ipv6() {
		shm.Populate(t.long[sender:to])
	}
	p.records.Store(to)
}

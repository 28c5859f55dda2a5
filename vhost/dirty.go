// SPDX-License-Identifier: Apache-2.0

package vhost

import (
	"fmt"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"weft/internal/shm"
)

// LogSpec describes the dirty log: a bitmap of the pages of guest memory that the
// switch has written. Live migration of a guest needs the log (vhost-user, "Live
// migration"). Size 0: no log.
type LogSpec struct {
	Size   uint64 `json:"size"`
	Offset uint64 `json:"offset"`
	FD     int    `json:"fd"`
}

// logPage is the number of bytes of guest memory per bit of the dirty log.
const logPage = 4096

// maxLogSize is the largest size of a dirty log in bytes; a log of this size covers 8
// TiB of guest memory. A larger log is refused.
const maxLogSize = 256 << 20

// checkLog refuses a dirty log whose size, offset or file is unusable.
func checkLog(s LogSpec, fd int) error {
	if s.Size < 8 || s.Size > maxLogSize || s.Offset%uint64(unix.Getpagesize()) != 0 || s.Offset+s.Size < s.Offset {
		return fmt.Errorf("dirty log of %d bytes at offset %d, expected 8 to %d bytes at a multiple of the page size", s.Size, s.Offset, maxLogSize)
	}
	_, _, err := checkFile(RegionSpec{Size: s.Size, MmapOffset: s.Offset}, fd)
	return err
}

// dirtyLog is the dirty log, mapped into the engine. The switch sets bits in it, and the front end
// clears them. The methods of a nil dirtyLog do nothing.
type dirtyLog struct {
	mem    *memory
	words  []uint32
	mapped []byte
}

func openLog(s LogSpec, mem *memory, fds []int) (*dirtyLog, error) {
	if s.Size == 0 {
		return nil, nil
	}
	if s.FD < 0 || s.FD >= len(fds) {
		return nil, fmt.Errorf("dirty log: descriptor %d of %d", s.FD, len(fds))
	}
	if err := checkLog(s, fds[s.FD]); err != nil {
		return nil, err
	}
	mapped, err := unix.Mmap(fds[s.FD], int64(s.Offset), int(s.Size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("dirty log: map %d bytes: %w", s.Size, err)
	}
	return &dirtyLog{mem: mem, words: shm.View[uint32](mapped, 0, len(mapped)/4), mapped: mapped}, nil
}

// mark sets the dirty bits of n bytes at addr, an address of this process. The caller must write the
// bytes before it calls mark. If the front end copies the page between the write and mark, the bit
// makes it copy the page again.
func (l *dirtyLog) mark(addr uintptr, n uint32) {
	if l == nil || n == 0 {
		return
	}
	for i := range l.mem.regions {
		r := &l.mem.regions[i]
		off := uint64(addr - r.base)
		if off >= r.size {
			continue
		}
		from := r.guest + off
		for page := from / logPage; page <= (from+uint64(n)-1)/logPage; page++ {
			if word := page / 32; word < uint64(len(l.words)) {
				atomic.OrUint32(&l.words[word], 1<<(page%32)) // pairs with the front end's exchange
			}
		}
		return
	}
}

// logRing marks as dirty the parts of a ring that the device writes. It runs when a ring opens,
// because the previous engine may have written a page and died before it marked the page.
func (r *ring) logRing() {
	if r.log == nil {
		return
	}
	if r.packed {
		r.log.mark(uintptr(r.used), 4)
		r.log.mark(uintptr(r.desc), descSize*r.num)
		return
	}
	r.log.mark(uintptr(r.used), 4+8*r.num+2)
}

// logPublished marks as dirty the used elements that publishUpTo has just written. "published" and "first"
// are the values that r.published and r.first had before. Not the whole ring is marked, because it may
// have 129 pages.
func (r *ring) logPublished(published, first uint16) {
	if r.packed {
		from, to := uint32(first&^packedWrap), uint32(r.first&^packedWrap)
		if from < to {
			r.log.mark(uintptr(r.desc)+uintptr(from)*descSize, (to-from)*descSize)
			return
		}
		r.log.mark(uintptr(r.desc)+uintptr(from)*descSize, (r.num-from)*descSize)
		r.log.mark(uintptr(r.desc), to*descSize)
		return
	}
	r.log.mark(uintptr(r.used), 4) // flags and index
	from, n := uint32(published)&r.mask, uint32(r.published-published)
	before := min(n, r.num-from)
	r.log.mark(uintptr(r.elems)+uintptr(from)*8, before*8)
	r.log.mark(uintptr(r.elems), (n-before)*8)
}

// logArmed marks as dirty the words in which arm has requested a kick. A packed ring has them in the
// device event suppression structure, a split ring in the flags of the used ring and in avail_event.
func (r *ring) logArmed() {
	r.log.mark(uintptr(r.used), 4)
	if !r.packed && r.eventIndex {
		r.log.mark(uintptr(r.used)+4+8*uintptr(r.num), 2)
	}
}

func (l *dirtyLog) close() {
	if l != nil {
		_ = unix.Munmap(l.mapped)
	}
}

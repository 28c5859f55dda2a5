package vhost

import (
	"fmt"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"weft/internal/shm"
)

// LogSpec is the bitmap of pages that the switch has written, which a guest that
// is being moved needs (vhost-user, "Live migration"). Size 0: none.
type LogSpec struct {
	Size   uint64 `json:"size"`
	Offset uint64 `json:"offset"`
	FD     int    `json:"fd"`
}

// logPage is what a bit stands for, in bytes of guest address.
const logPage = 4096

// maxLogSize covers 8 TiB of guest memory.
const maxLogSize = 256 << 20

// checkLog refuses what is no bitmap for this machine to map.
func checkLog(s LogSpec, fd int) error {
	if s.Size < 8 || s.Size > maxLogSize || s.Offset%uint64(unix.Getpagesize()) != 0 || s.Offset+s.Size < s.Offset {
		return fmt.Errorf("dirty log of %d bytes at offset %d, expected 8 to %d at a page", s.Size, s.Offset, maxLogSize)
	}
	_, _, err := checkFile(RegionSpec{Size: s.Size, MmapOffset: s.Offset}, fd)
	return err
}

// dirtyLog marks pages. The front end clears them; both work on the same memory.
// A nil log marks nothing.
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

// mark says that n bytes at an address of this process were written. It comes
// after the writing: a page that was cleared and copied in between must be
// copied again. What the bitmap does not cover is not marked.
func (l *dirtyLog) mark(at uintptr, n uint32) {
	if l == nil || n == 0 {
		return
	}
	for i := range l.mem.regions {
		r := &l.mem.regions[i]
		off := uint64(at - r.base)
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

// logRing marks all that the device can write of a ring. It is for the start, when
// nobody knows how much of it the engine before has marked.
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

// logShown marks the used elements that show has written: from published on, of a
// packed ring from position first on. A ring may have 129 pages; marking all of them
// for one frame would be the guest's choice of how much work that frame is.
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

// logWish marks the words by which arm asks for a kick.
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

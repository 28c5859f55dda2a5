package vhost

import (
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"

	"weft/packet"
)

// region is a piece of guest memory mapped into this process. Pointer-free: the
// mapping is not the collector's.
type region struct {
	guest, size uint64
	base        uintptr // where guest lies here
	user        uint64
}

// memory is a guest's memory table. It does not change while a device is open.
type memory struct {
	regions []region
	maps    [][]byte // what to unmap, one a region
}

// openMemory maps the regions; it leaves the descriptors alone. A file that is
// shorter than its region is refused: its end would fault.
func openMemory(specs []RegionSpec, fds []int) (*memory, error) {
	if err := checkRegions(specs); err != nil {
		return nil, err
	}
	m := &memory{}
	for i, s := range specs {
		if s.FD < 0 || s.FD >= len(fds) {
			m.close()
			return nil, fmt.Errorf("memory region %d: descriptor %d of %d", i, s.FD, len(fds))
		}
		if err := m.add(s, fds[s.FD]); err != nil {
			m.close()
			return nil, fmt.Errorf("memory region %d: %w", i, err)
		}
	}
	return m, nil
}

func (m *memory) add(s RegionSpec, fd int) error {
	skip, length, err := checkFile(s, fd)
	if err != nil {
		return err
	}
	off := s.MmapOffset - skip
	mapped, err := unix.Mmap(fd, int64(off), int(length), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_NORESERVE)
	if err != nil {
		return fmt.Errorf("map %d bytes at offset %d: %w", length, off, err)
	}
	// A core dump must not hold the guest's memory, nor a child.
	_ = unix.Madvise(mapped, unix.MADV_DONTDUMP)
	m.maps = append(m.maps, mapped)
	m.regions = append(m.regions, region{
		guest: s.GuestAddr, size: s.Size, user: s.UserAddr,
		base: uintptr(unsafe.Pointer(&mapped[0])) + uintptr(skip),
	})
	return nil
}

// checkFile checks that a region's file is shared memory and as long as the region needs.
// It returns the mapping that the region takes: a file of huge pages is mapped in whole
// huge pages, so that the region begins skip bytes into a mapping of length bytes.
func checkFile(s RegionSpec, fd int) (skip, length uint64, err error) {
	if err := checkShared(fd); err != nil {
		return 0, 0, err
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return 0, 0, fmt.Errorf("stat: %w", err)
	}
	if end := s.MmapOffset + s.Size; st.Size < 0 || end < s.Size || end > uint64(st.Size) {
		return 0, 0, fmt.Errorf("file of %d bytes is shorter than offset %d and size %d", st.Size, s.MmapOffset, s.Size)
	}
	align := uint64(unix.Getpagesize())
	if b := uint64(st.Blksize); b > align && b&(b-1) == 0 && b <= maxPage {
		align = b
	}
	skip = s.MmapOffset & (align - 1)
	return skip, (skip + s.Size + align - 1) &^ (align - 1), nil
}

// maxPage is the largest huge page that is known of, in bytes (arm64 with pages of 64 KiB).
const maxPage = 16 << 30

// find translates a guest address: where it lies here, and how many of n bytes
// lie there in one piece; 0 bytes if the address is outside of guest memory.
func (m *memory) find(last *region, addr uint64, n uint32) (uintptr, uint32) {
	off := addr - last.guest
	if off >= last.size {
		found := false
		for i := range m.regions {
			if off = addr - m.regions[i].guest; off < m.regions[i].size {
				*last, found = m.regions[i], true
				break
			}
		}
		if !found {
			return 0, 0
		}
	}
	if left := last.size - off; uint64(n) > left {
		n = uint32(left)
	}
	return last.base + uintptr(off), n
}

// user translates a range of the front end's addresses, which must lie in one
// region.
func (m *memory) user(addr, n uint64) (unsafe.Pointer, error) {
	for _, r := range m.regions {
		if off := addr - r.user; off < r.size && n <= r.size-off {
			return foreignPointer(r.base + uintptr(off)), nil
		}
	}
	return nil, fmt.Errorf("user address %#x with %d bytes is not in one memory region", addr, n)
}

func (m *memory) close() {
	for _, b := range m.maps {
		_ = unix.Munmap(b)
	}
	m.maps, m.regions = nil, nil
}

// foreignPointer is a pointer to mapped memory outside of the Go heap.
func foreignPointer(addr uintptr) unsafe.Pointer {
	return *(*unsafe.Pointer)(unsafe.Pointer(&addr))
}

// readHeader copies the part of a virtio-net header that all of them have.
func readHeader(at uintptr) (h [packet.VnetLen]byte) {
	return *(*[packet.VnetLen]byte)(foreignPointer(at))
}

// cacheLine is what cores take from each other at a time, in bytes.
const cacheLine = 64

// writeHeader writes the virtio-net header of a frame in one chain: zero, and
// num_buffers 1 where there is one (virtio 1.2 section 5.1.6.4.1). Little endian.
//
// A header with a cache line of its own is left as it is if it says so already:
// DPDK's driver, whose frames begin with a line, only reads it and uses the buffer
// again, and both cores keep the line. Elsewhere the line is taken anyway.
func writeHeader(at uintptr, size uint32) {
	const oneBuffer = 1 << 16 // csum_offset 0, num_buffers 1
	p := foreignPointer(at)
	first, last := (*uint64)(p), unsafe.Add(p, 8)
	if size == 12 {
		if (at+12)%cacheLine != 0 || *first != 0 || *(*uint32)(last) != oneBuffer {
			*first, *(*uint32)(last) = 0, oneBuffer
		}
		return
	}
	*first, *(*uint16)(last) = 0, 0
}

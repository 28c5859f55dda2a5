// SPDX-License-Identifier: Apache-2.0

package vhost

import (
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"

	"weft/packet"
)

// region is one region of guest memory, mapped into this process. It holds addresses as integers,
// because the garbage collector does not manage the mapping.
type region struct {
	guest, size uint64
	base        uintptr // address of the region's first byte in this process
	user        uint64
}

// memory is a guest's memory table. It does not change while a device is open.
type memory struct {
	regions []region
	maps    [][]byte // mappings to unmap, one for each region
}

// openMemory maps the regions of guest memory. It refuses a file that is shorter than its region,
// because an access beyond the end of the file faults. The caller keeps the ownership of fds.
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
	// A core dump of the engine must not contain the guest's memory.
	_ = unix.Madvise(mapped, unix.MADV_DONTDUMP)
	m.maps = append(m.maps, mapped)
	m.regions = append(m.regions, region{
		guest: s.GuestAddr, size: s.Size, user: s.UserAddr,
		base: uintptr(unsafe.Pointer(&mapped[0])) + uintptr(skip),
	})
	return nil
}

// checkFile refuses a region whose file is no shared memory or is too short. It also returns the size of
// the mapping, which must begin and end on page boundaries; the pages of hugetlbfs are huge pages. skip is
// the number of bytes of the mapping before the region, and length the size of the whole mapping in bytes.
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

// maxPage is the size in bytes of the largest known huge page (arm64 with 64 KiB
// pages).
const maxPage = 16 << 30

// find translates a guest address into an address of this process. It also returns how many of the n bytes
// are contiguous there; 0 means that the address is invalid. It first looks into *cached, the region that
// the previous call has found, and sets *cached to the region that it finds.
func (m *memory) find(cached *region, addr uint64, n uint32) (uintptr, uint32) {
	off := addr - cached.guest
	if off >= cached.size {
		found := false
		for i := range m.regions {
			if off = addr - m.regions[i].guest; off < m.regions[i].size {
				*cached, found = m.regions[i], true
				break
			}
		}
		if !found {
			return 0, 0
		}
	}
	if left := cached.size - off; uint64(n) > left {
		n = uint32(left)
	}
	return cached.base + uintptr(off), n
}

// user translates a range of addresses of the front end's process into an address of
// this process. The range must be within one region.
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

// foreignPointer returns a pointer to an address of mapped memory, which is outside
// of the Go heap.
func foreignPointer(addr uintptr) unsafe.Pointer {
	return *(*unsafe.Pointer)(unsafe.Pointer(&addr))
}

// readHeader copies a virtio-net header, without its field num_buffers, from guest memory at addr.
func readHeader(addr uintptr) (h [packet.VnetLen]byte) {
	return *(*[packet.VnetLen]byte)(foreignPointer(addr))
}

// cacheLine is the size of a cache line of the CPU, in bytes.
const cacheLine = 64

// writeHeader writes a virtio-net header without offloads, of size bytes, in little endian. The
// 12-byte header also has num_buffers, which is 1 (virtio 1.2 section 5.1.6.4.1).
//
// DPDK's driver puts the header at the end of a cache line and the frame into the next line.
// writeHeader then leaves a header alone that has the right values already: a cache line that nobody
// writes stays in the caches of both cores.
func writeHeader(addr uintptr, size uint32) {
	const oneBuffer = 1 << 16 // csum_offset 0, num_buffers 1
	p := foreignPointer(addr)
	first, last := (*uint64)(p), unsafe.Add(p, 8)
	if size == 12 {
		if (addr+12)%cacheLine != 0 || *first != 0 || *(*uint32)(last) != oneBuffer {
			*first, *(*uint32)(last) = 0, oneBuffer
		}
		return
	}
	*first, *(*uint16)(last) = 0, 0
}

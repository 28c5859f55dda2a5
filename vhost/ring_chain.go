// SPDX-License-Identifier: Apache-2.0

package vhost

import "unsafe"

// walk checks a chain and appends its memory to r.segments, whose first n elements are already in use.
// write is true if the device must be allowed to write the chain's buffers, false if it must only read
// them. walk returns the new number of segments and the number of bytes that it has added. If the
// chain is invalid, walk breaks the device and returns -1 (virtio 1.2 sections 2.7.5, 2.7.5.3.1, 2.8.6
// and 2.8.7).
func (r *ring) walk(h *head, write bool, n int) (int, uint64) {
	if r.packed {
		return r.walkPacked(h, write, n)
	}
	addr, length, flags, next := h.addr, h.n, h.flags, h.next
	total := uint64(0)
	for left := r.num; ; {
		if flags&descIndirect != 0 {
			if flags&descNext != 0 {
				return r.broken(faultIndirectNext, uint64(h.id), 0), 0
			}
			var more uint64
			n, more = r.walkTable(addr, length, write, n)
			return n, total + more
		}
		if n = r.segment(addr, length, flags, write, n); n < 0 {
			return -1, 0
		}
		total += uint64(length)
		if flags&descNext == 0 {
			return n, total
		}
		if uint32(next) >= r.num {
			return r.broken(faultNext, uint64(next), uint64(r.num)), 0
		}
		if left--; left == 0 {
			return r.broken(faultLoop, uint64(h.id), uint64(r.num)), 0
		}
		addr, length, flags, next = readDesc(unsafe.Add(r.desc, uintptr(next)*descSize))
	}
}

// walkTable appends the memory of an indirect table of a split ring to r.segments. tableAddr is the
// guest address of the table, and length its size in bytes. The other parameters and the results are
// those of walk.
func (r *ring) walkTable(tableAddr uint64, length uint32, write bool, n int) (int, uint64) {
	if length == 0 || length%descSize != 0 {
		return r.broken(faultTable, tableAddr, uint64(length)), 0
	}
	size := length / descSize
	total := uint64(0)
	at := uint32(0)
	for left := size; ; {
		p, got := r.mem.find(&r.cached, tableAddr+uint64(at)*descSize, descSize)
		if got != descSize {
			return r.broken(faultAddress, tableAddr+uint64(at)*descSize, descSize), 0
		}
		addr, length, flags, next := readDesc(foreignPointer(p))
		if flags&descIndirect != 0 {
			return r.broken(faultNested, tableAddr, uint64(at)), 0
		}
		if n = r.segment(addr, length, flags, write, n); n < 0 {
			return -1, 0
		}
		total += uint64(length)
		if flags&descNext == 0 {
			return n, total
		}
		if uint32(next) >= size {
			return r.broken(faultNext, uint64(next), uint64(size)), 0
		}
		if left--; left == 0 {
			return r.broken(faultLoop, tableAddr, uint64(size)), 0
		}
		at = uint32(next)
	}
}

// segment checks a descriptor and appends its memory to r.segments: one segment for each region of
// guest memory that the descriptor covers. It returns the new number of segments, or -1 if it has
// broken the device.
func (r *ring) segment(addr uint64, length uint32, flags uint16, write bool, n int) int {
	if write != (flags&descWrite != 0) {
		return r.broken(faultDirection, addr, uint64(flags))
	}
	if length == 0 {
		return r.broken(faultEmpty, addr, 0)
	}
	for length > 0 {
		p, got := r.mem.find(&r.cached, addr, length)
		if got == 0 {
			return r.broken(faultAddress, addr, uint64(length))
		}
		if n == maxSegments {
			return r.broken(faultTooLong, addr, maxSegments)
		}
		r.segments[n] = segment{addr: p, n: got}
		n++
		addr += uint64(got)
		length -= got
	}
	return n
}

// walkPacked does the work of walk for a packed ring. It reads as many descriptors as readHead has
// counted, even if the guest has changed their flags since.
func (r *ring) walkPacked(h *head, write bool, n int) (int, uint64) {
	addr, length, flags, at := h.addr, h.n, h.flags, h.next
	total := uint64(0)
	for left := h.id >> 16; ; {
		if flags&descIndirect != 0 {
			if flags&descNext != 0 || left != 1 {
				return r.broken(faultIndirectNext, uint64(at&^packedWrap), 0), 0
			}
			var more uint64
			n, more = r.walkPackedTable(addr, length, write, n)
			return n, total + more
		}
		if n = r.segment(addr, length, flags, write, n); n < 0 {
			return -1, 0
		}
		total += uint64(length)
		if left--; left == 0 {
			return n, total
		}
		at = r.advance(at, 1)
		addr, length, _, flags = readDesc(r.packedDesc(at))
	}
}

// walkPackedTable does the work of walkTable for a packed ring. All descriptors of the table form the
// chain, in order (virtio 1.2 section 2.8.7).
func (r *ring) walkPackedTable(table uint64, length uint32, write bool, n int) (int, uint64) {
	if length == 0 || length%descSize != 0 {
		return r.broken(faultTable, table, uint64(length)), 0
	}
	total := uint64(0)
	for at := uint32(0); at < length; at += descSize {
		p, got := r.mem.find(&r.cached, table+uint64(at), descSize)
		if got != descSize {
			return r.broken(faultAddress, table+uint64(at), descSize), 0
		}
		addr, size, _, flags := readDesc(foreignPointer(p))
		if flags&descIndirect != 0 {
			return r.broken(faultNested, table, uint64(at/descSize)), 0
		}
		// maxSegments bounds this loop: the method segment fails beyond it
		if n = r.segment(addr, size, flags, write, n); n < 0 {
			return -1, 0
		}
		total += uint64(size)
	}
	return n, total
}

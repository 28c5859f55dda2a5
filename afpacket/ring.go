// SPDX-License-Identifier: Apache-2.0

package afpacket

import (
	"bytes"
	"errors"
	"fmt"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"weft/internal/shm"
	"weft/packet"
)

// A ring is memory of a socket that the kernel shares with the engine process (PACKET_RX_RING, TPACKET_V2,
// Documentation/networking/packet_mmap.rst). The kernel copies each frame into the next slot and sets the
// slot's status. If a frame is longer than a slot, the slot has only its beginning, and the whole frame is
// also queued in the socket (PACKET_COPY_THRESH). The order of slots and the order of the socket's queue are
// the same.
//
// The ring belongs to the socket. The control process holds the socket, so the ring outlives the engine
// process. The next engine process must continue at the right slot, but the kernel does not report its own
// position. The engine process therefore stores two facts in the ring. It sets the status of a received slot
// to slotTaken. After each batch, it stores its position in the record, a field in the first slot.

const (
	// ringSlots is the number of slots of a ring. If no slot is free, the kernel drops
	// the frame and counts it.
	ringSlots = 4096
	// slotBytes is the length of a slot in bytes. A frame for an MTU of up to 1,900
	// bytes fits. blockBytes is the unit in which the kernel allocates the ring.
	slotBytes  = 2048
	blockBytes = 64 << 10
	// slotReserve is the number of bytes between a slot's header and its frame that the kernel leaves alone
	// (PACKET_RESERVE). In the first slot, these bytes have the record (the position at which the next engine
	// process continues), at offset recordAt. They follow sockaddr_ll, which ends at byte 52.
	slotReserve = 16
	recordAt    = 64
	// slotTaken is the status of a slot from which the engine process has received the frame, until it releases
	// the slot. The kernel neither sets this value nor writes to a slot that has it.
	slotTaken = 1 << 16
)

// slot is a slot of a ring. The kernel writes the virtio-net header and the frame at
// the header's field Mac (include/uapi/linux/if_packet.h).
type slot struct {
	unix.Tpacket2Hdr
	rest [slotBytes - unix.SizeofTpacket2Hdr]byte
}

// addRing adds a ring to the socket fd. The socket must already use the virtio-net
// header, and must not be bound yet.
func addRing(fd, slots int) error {
	for _, o := range []struct{ name, value int }{
		{unix.PACKET_VERSION, unix.TPACKET_V2},
		{unix.PACKET_RESERVE, slotReserve},
		{unix.PACKET_COPY_THRESH, 1},
	} {
		if err := unix.SetsockoptInt(fd, unix.SOL_PACKET, o.name, o.value); err != nil {
			return fmt.Errorf("socket option %d: %w", o.name, err)
		}
	}
	err := unix.SetsockoptTpacketReq(fd, unix.SOL_PACKET, unix.PACKET_RX_RING, &unix.TpacketReq{
		Block_size: blockBytes, Block_nr: uint32(slots * slotBytes / blockBytes),
		Frame_size: slotBytes, Frame_nr: uint32(slots),
	})
	if err != nil {
		return fmt.Errorf("%d slots of %d bytes: %w", slots, slotBytes, err)
	}
	return nil
}

// ring is a socket's ring as the engine process sees it. A worker owns it. Positions count slots and wrap at
// 32 bits.
type ring struct {
	mem    []byte
	slots  []slot
	mask   uint32
	next   uint32         // position of the next slot to receive
	taken  uint32         // position of the first unreleased slot
	record *atomic.Uint32 // value of next after the last batch, stored for the next engine
}

// openRing maps the ring of the socket fd. It releases the slots that the last engine process has received
// but not released.
func openRing(fd, slots int) (ring, error) {
	if slots <= 0 || slots&(slots-1) != 0 {
		return ring{}, fmt.Errorf("%d slots: expected a power of two", slots)
	}
	mem, err := unix.Mmap(fd, 0, slots*slotBytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return ring{}, fmt.Errorf("map the ring: %w", err)
	}
	r := ring{mem: mem, slots: shm.View[slot](mem, 0, slots), mask: uint32(slots - 1),
		record: &shm.View[atomic.Uint32](mem, recordAt, 1)[0]}
	r.resume(fd)
	return r, nil
}

// resume continues where the last engine process stopped. An engine process marks a slot as taken before it
// reads the frame, and stores the record (its position) after the batch. The position to continue is
// therefore the first slot, from the record on, that is not taken. If slots before this position are still
// taken, the last engine process has not released them. resume discards their frames: one of them may have
// killed that process, and some may already have been sent.
func (r *ring) resume(fd int) {
	r.next = r.record.Load()
	for range r.slots {
		if r.slotAt(r.next).Status != slotTaken {
			break
		}
		r.next++
	}
	if r.readAlready(fd) {
		r.take()
	}
	r.taken = r.next
	for range r.slots {
		if r.slotAt(r.taken-1).Status != slotTaken {
			break
		}
		r.taken--
	}
	r.publish()
	r.release(r.next)
}

// readAlready reports whether the last engine process was killed after it had read a long frame from the
// socket fd, and before it marked the frame's slot. In this case the socket's next frame does not match the
// slot.
func (r *ring) readAlready(fd int) bool {
	s := r.slotAt(r.next)
	if s.Status&unix.TP_STATUS_USER == 0 || s.Status&unix.TP_STATUS_COPY == 0 {
		return false
	}
	at, n, err := s.frame()
	if err != nil {
		return false // Recv reports it
	}
	first := make([]byte, packet.VnetLen+n)
	for range 2 { // twice, because the first call may report an error of the device
		if got, _, err := unix.Recvfrom(fd, first, unix.MSG_PEEK|unix.MSG_DONTWAIT); err == nil {
			return !bytes.Equal(first[min(packet.VnetLen, got):got], s.rest[at:at+n])
		}
	}
	return true
}

// slotAt returns the slot at a position, which may be larger than the number of slots.
func (r *ring) slotAt(position uint32) *slot { return &r.slots[position&r.mask] }

// waits reports whether the next slot has a frame.
func (r *ring) waits() bool {
	// The load of the status pairs with the kernel's barrier between its writes of the frame and of the status
	// (tpacket_rcv).
	return atomic.LoadUint32(&r.slotAt(r.next).Status)&unix.TP_STATUS_USER != 0
}

// take marks the next slot as taken. A plain store is enough: the stores of a killed
// process stay in program order.
func (r *ring) take() {
	r.slotAt(r.next).Status = slotTaken
	r.next++
}

// publish stores the position at which the next engine process continues, in the record at the start of the
// ring.
func (r *ring) publish() { r.record.Store(r.next) }

// release returns the slots before position end to the kernel, which may then overwrite their frames.
func (r *ring) release(end uint32) {
	for ; r.taken != end; r.taken++ {
		// The frame was read before this store. The store pairs with the kernel's barrier before it reads the
		// status (__packet_get_status).
		atomic.StoreUint32(&r.slotAt(r.taken).Status, unix.TP_STATUS_KERNEL)
	}
}

func (r *ring) unmap() {
	if r.mem != nil {
		_ = unix.Munmap(r.mem)
		r.mem, r.slots = nil, nil
	}
}

var errSlot = errors.New("the ring has a frame outside of its slot")

// frame returns the offset and the length in bytes of the frame in slot s. The offset is an index into
// s.rest. The virtio-net header ends at this offset.
func (s *slot) frame() (from, n int, err error) {
	const header = unix.SizeofTpacket2Hdr
	from, n = int(s.Mac)-header, int(s.Snaplen) // the kernel's memory is read once
	if from < unix.SizeofSockaddrLinklayer || n > len(s.rest)-from {
		return 0, 0, errSlot
	}
	return from, n, nil
}

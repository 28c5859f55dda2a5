// SPDX-License-Identifier: Apache-2.0

package afpacket

import (
	"errors"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"weft/internal/shm"
)

// This file detects stopped rings. Some kernels stop a ring for good after a frame whose kind of segmentation
// does not exist in the virtio-net header, for example a large SCTP frame of a container behind Linux's vxlan
// device. The function tpacket_rcv then leaves the slot's bit set in rx_owner_map (seen on Linux 6.18). A
// peer can send such a frame. The control process therefore checks for stopped rings at intervals, and if it
// finds one, it sets the uplink up again without rings.

// ErrStopped means that the kernel has stopped a ring for good.
var ErrStopped = errors.New("the kernel has stopped the ring of a packet socket")

// counts has the kernel's counters of a packet socket. They start at 0 in Setup and Restore.
type counts struct {
	seen, dropped uint64 // frames that have passed the filter, including dropped ones
}

// count adds the kernel's counters to u.counts. Each read of the kernel's counters resets them.
func (u *Uplink) count() {
	for i := range u.spec.sockets() {
		s, err := unix.GetsockoptTpacketStats(u.sockets[i], unix.SOL_PACKET, unix.PACKET_STATISTICS)
		if err == nil {
			u.counts[i].seen += uint64(s.Packets)
			u.counts[i].dropped += uint64(s.Drops)
		}
	}
}

// Dropped returns the number of frames that the kernel dropped since Setup or Restore,
// because a ring or a socket's queue was full.
func (u *Uplink) Dropped() (n uint64) {
	u.count()
	for i := range u.spec.sockets() {
		n += u.counts[i].dropped
	}
	return n
}

// Check returns ErrStopped if the kernel has dropped all frames for a ring since the last Check, although the
// ring is empty.
func (u *Uplink) Check() error {
	last := u.checked
	u.count()
	u.checked = u.counts
	for i := range u.spec.Rings {
		seen, dropped := u.counts[i].seen-last[i].seen, u.counts[i].dropped-last[i].dropped
		if dropped > 0 && dropped == seen && u.ringIsEmpty(i) {
			return ErrStopped
		}
	}
	return nil
}

// ringIsEmpty reports whether no frame waits for the engine process in the ring of socket i. While the engine
// process hangs, its ring is full. So if an empty ring drops frames, the kernel has stopped it.
func (u *Uplink) ringIsEmpty(i int) bool {
	mem, err := unix.Mmap(u.sockets[i], 0, u.spec.Slots*slotBytes, unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		return false
	}
	defer func() { _ = unix.Munmap(mem) }()
	slots := shm.View[slot](mem, 0, u.spec.Slots)
	for i := range slots {
		if atomic.LoadUint32(&slots[i].Status)&unix.TP_STATUS_USER != 0 {
			return false
		}
	}
	return true
}

// SPDX-License-Identifier: Apache-2.0

package vhosttest

import (
	"encoding/binary"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"weft/internal/shm"
	"weft/vhost"
)

// This file is the front end's side of INFLIGHT_SHMFD. The front end only keeps the
// inflight buffer; the back end defines its layout and writes it.

const (
	getInflightFD = 31
	setInflightFD = 32
)

// makeInflight makes an inflight buffer, as a back end does for GET_INFLIGHT_FD.
func (g *Guest) makeInflight() error {
	if g.inflight >= 0 {
		return nil
	}
	header, entry := 16, 16 // sizes of QueueRegionSplit and DescStateSplit in the vhost-user specification, in bytes
	if g.Features&vhost.FeatureRingPacked != 0 {
		header, entry = 32, 32 // sizes of QueueRegionPacked and DescStatePacked in the vhost-user specification, in bytes
	}
	size := 2 * g.Pairs * ((header + entry*g.Num + 63) &^ 63)
	fd, err := unix.MemfdCreate("inflight", unix.MFD_CLOEXEC)
	if err != nil {
		return fmt.Errorf("inflight buffer: %w", err)
	}
	g.inflight = fd
	g.inflightSpec = vhost.InflightSpec{Size: uint64(size), Queues: 2 * g.Pairs, QueueSize: g.Num}
	return unix.Ftruncate(fd, int64(size))
}

// MarkInflight marks a descriptor of a split ring as in flight, as another back end
// would. counter gives the order in which the descriptors were taken.
func (g *Guest) MarkInflight(q *Queue, id int, counter uint64) error {
	if err := g.makeInflight(); err != nil {
		return err
	}
	mem, err := unix.Mmap(g.inflight, 0, int(g.inflightSpec.Size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Munmap(mem) }()
	region := mem[q.index*((16+16*g.Num+63)&^63):]
	shm.View[uint16](region, 8, 1)[0] = 1 // version
	shm.View[uint16](region, 10, 1)[0] = uint16(g.Num)
	shm.View[uint16](region, 14, 1)[0] = q.UsedIndex()
	entry := region[16+16*id:]
	entry[0] = 1
	binary.LittleEndian.PutUint64(entry[8:], counter)
	return nil
}

// Inflight requests an inflight buffer, unless the guest has one, and sends it to the
// switch.
func (f *FrontEnd) Inflight(g *Guest) error {
	about := append(make([]byte, 16), 0, 0, 0, 0, 0, 0, 0, 0) // padded like QEMU's message
	binary.LittleEndian.PutUint16(about[16:], uint16(2*g.Pairs))
	binary.LittleEndian.PutUint16(about[18:], uint16(g.Num))
	if g.inflight < 0 {
		if err := f.Send(getInflightFD, Version, about); err != nil {
			return err
		}
		reply := make([]byte, 12+len(about))
		oob := make([]byte, 64)
		if err := f.Conn.SetReadDeadline(time.Now().Add(frontTimeout)); err != nil {
			return err
		}
		n, oobn, _, _, err := f.Conn.ReadMsgUnix(reply, oob)
		if err != nil {
			return err
		}
		if n != len(reply) {
			return fmt.Errorf("inflight buffer: reply of %d bytes, expected %d", n, len(reply))
		}
		messages, err := unix.ParseSocketControlMessage(oob[:oobn])
		if err != nil || len(messages) != 1 {
			return fmt.Errorf("inflight buffer: no descriptor came: %w", err)
		}
		fds, err := unix.ParseUnixRights(&messages[0])
		if err != nil || len(fds) != 1 {
			return fmt.Errorf("inflight buffer: %d descriptors: %w", len(fds), err)
		}
		unix.CloseOnExec(fds[0])
		g.inflight = fds[0]
		g.inflightSpec = vhost.InflightSpec{Size: binary.LittleEndian.Uint64(reply[12:]), Offset: binary.LittleEndian.Uint64(reply[20:]),
			Queues: 2 * g.Pairs, QueueSize: g.Num}
	}
	binary.LittleEndian.PutUint64(about, g.inflightSpec.Size)
	binary.LittleEndian.PutUint64(about[8:], g.inflightSpec.Offset)
	return f.do(setInflightFD, about, g.inflight)
}

// MissInflight makes the used index in the inflight buffer n smaller than the ring's used index, as if
// a back end had died before it noted its last n used elements.
func (g *Guest) MissInflight(q *Queue, n uint16) error {
	mem, err := unix.Mmap(g.inflight, 0, int(g.inflightSpec.Size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Munmap(mem) }()
	region := mem[q.index*((16+16*g.Num+63)&^63):]
	shm.View[uint16](region, 14, 1)[0] = q.UsedIndex() - n
	return nil
}

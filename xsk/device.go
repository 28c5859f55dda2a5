// SPDX-License-Identifier: Apache-2.0

package xsk

import (
	"fmt"
	"math/bits"

	"golang.org/x/sys/unix"

	"weft/internal/shm"
	"weft/port"
)

// device is an open uplink in the engine process. Receive queue i and transmit queue i use the socket of the
// NIC's queue i, but different workers may own them. There may be fewer transmit queues than receive queues.
type device struct {
	port.Queues
	region *shm.Region
}

// Open opens the queues of an uplink. text is the result of Uplink.Spec. fds are duplicates of Uplink.FDs:
// the memfd and one socket for each queue. Open continues where the last engine process stopped. No other
// engine process may use the sockets at the same time. Open owns the descriptors, even if it fails.
func Open(text []byte, fds []int) (port.Device, error) {
	s, err := parseSpec(text, fds)
	if err != nil {
		closeAll(fds)
		return nil, err
	}
	d := &device{Queues: port.Queues{FDs: fds[1:]}}
	if d.region, err = shm.Open(fds[0]); err != nil {
		d.Close()
		return nil, fmt.Errorf("af_xdp on %s: %w", s.Dev, err)
	}
	if _, need := s.carve(nil); need > len(d.region.Bytes()) {
		err := fmt.Errorf("af_xdp on %s: memory of %d bytes: expected at least %d", s.Dev, len(d.region.Bytes()), need)
		d.Close()
		return nil, err
	}
	queues, _ := s.carve(d.region.Bytes())
	for i := range queues {
		if err := d.openQueue(&s, i, &queues[i]); err != nil {
			d.Close()
			return nil, fmt.Errorf("af_xdp on %s: queue %d: %w", s.Dev, i, err)
		}
	}
	return d, nil
}

func (d *device) openQueue(s *spec, i int, m *queueMemory) error {
	fd := d.FDs[i]
	off, err := mmapOffsets(fd)
	if err != nil {
		return fmt.Errorf("XDP_MMAP_OFFSETS: %w", err)
	}
	umem := d.region.Bytes()[:s.umemBytes()]
	rx := &rxQueue{
		fd: fd, record: m.record, umem: umem, umemAt: address(umem),
		first: m.rx, bytes: m.tx - m.rx, frameSize: uint64(s.FrameSize), wait: -1,
		busyPoll: s.BusyPoll > 0, pieces: s.Pieces,
	}
	d.AddRx(rx)
	if rx.wait, err = newWaitSet(); err != nil {
		return fmt.Errorf("epoll: %w", err)
	}
	if rx.rx, err = mapRing[unix.XDPDesc](fd, unix.XDP_PGOFF_RX_RING, off.Rx, s.RingSize); err != nil {
		return fmt.Errorf("rx: %w", err)
	}
	if rx.fill, err = mapRing[uint64](fd, unix.XDP_UMEM_PGOFF_FILL_RING, off.Fr, s.RingSize); err != nil {
		return fmt.Errorf("fill: %w", err)
	}
	if i < s.TxQueues {
		if rx.tx, err = mapRing[unix.XDPDesc](fd, unix.XDP_PGOFF_TX_RING, off.Tx, s.RingSize); err != nil {
			return fmt.Errorf("tx: %w", err)
		}
		if err := d.openTx(s, fd, &off, m, umem); err != nil {
			return fmt.Errorf("tx: %w", err)
		}
	}
	if err := rx.recoverIndexes(); err != nil {
		return fmt.Errorf("rx: %w", err)
	}
	return nil
}

func (d *device) openTx(s *spec, fd int, offsets *unix.XDPMmapOffsets, m *queueMemory, umem []byte) (err error) {
	tx := &txQueue{
		fd: fd, record: m.record, marks: m.marks, umem: umem,
		first: m.tx, bytes: m.tx - m.rx, frameSize: uint64(s.FrameSize),
		shift: uint(bits.TrailingZeros(uint(s.FrameSize))),
		mtu:   s.MTU + ethernetLen, zeroCopy: s.ZeroCopy,
		free: make([]uint32, s.RingSize),
	}
	if s.Pieces {
		tx.large = make([]byte, tx.mtu)
	}
	d.AddTx(tx)
	if tx.tx, err = mapRing[unix.XDPDesc](fd, unix.XDP_PGOFF_TX_RING, offsets.Tx, s.RingSize); err != nil {
		return err
	}
	if tx.completion, err = mapRing[uint64](fd, unix.XDP_UMEM_PGOFF_COMPLETION_RING, offsets.Cr, s.RingSize); err != nil {
		return err
	}
	return tx.recoverFrames()
}

// Close unmaps all memory and closes the descriptors of the engine process. The XDP program stays attached.
// New frames then wait in the rx ring.
func (d *device) Close() {
	d.Queues.Close()
	if d.region != nil {
		_ = d.region.Close()
	}
	d.region = nil
}

// SPDX-License-Identifier: Apache-2.0

package porttest

import (
	"encoding/json"
	"fmt"

	"golang.org/x/sys/unix"

	"weft/packet"
	"weft/port"
)

// Socket is a device with one receive and one transmit queue over a datagram socket. Each datagram is
// a frame. Another process has the socket's other end.
type Socket struct {
	memory
	fd    int
	n     int // number of buffers lent
	fault string
	saved json.RawMessage
}

// socketSlot is the length in bytes of the longest frame that a Socket sends or receives.
const socketSlot = 2048

// OpenSocket opens a Socket. It has the type engine.Opener. It needs one descriptor, a connected datagram or
// seqpacket socket. The device's State returns spec.
func OpenSocket(spec []byte, fds []int) (port.Device, error) {
	if len(fds) != 1 {
		for _, fd := range fds {
			unix.Close(fd)
		}
		return nil, fmt.Errorf("socket device: %d descriptors, expected 1", len(fds))
	}
	if err := unix.SetNonblock(fds[0], true); err != nil {
		unix.Close(fds[0])
		return nil, fmt.Errorf("socket device: %w", err)
	}
	return &Socket{memory: newMemory((packet.BatchSize + 1) * socketSlot), fd: fds[0], saved: append([]byte(nil), spec...)}, nil
}

// Rx implements port.Device.
func (s *Socket) Rx() []port.Rx { return []port.Rx{socketRx{s}} }

// Tx implements port.Device.
func (s *Socket) Tx() []port.Tx { return []port.Tx{socketTx{s}} }

// State implements port.Device.
func (s *Socket) State() []byte { return s.saved }

// Close implements port.Device.
func (s *Socket) Close() {
	s.close()
	closeFD(s.fd)
}

type socketRx struct{ *Socket }

func (r socketRx) Recv(b *packet.Batch) int {
	got := 0
	for ; !b.Full() && r.n < packet.BatchSize; got++ {
		slot := r.bytes[r.n*socketSlot:][:socketSlot]
		n, err := unix.Read(r.fd, slot)
		if err == unix.EAGAIN || err == unix.EINTR {
			break
		}
		if err != nil || n == 0 {
			r.fault = "the socket's other end is closed"
			if got == 0 {
				return -1
			}
			break
		}
		f, head := b.Next()
		headerLen := copy(head[:packet.InnerHeader], slot[:n])
		if n > headerLen {
			b.AddSpan(f, address(slot[headerLen:]), uint32(n-headerLen))
		}
		b.Commit(f, headerLen)
		r.n++
	}
	return got
}

func (r socketRx) Release()      { r.n = 0 }
func (r socketRx) Arm() bool     { return false }
func (r socketRx) Disarm()       {}
func (r socketRx) WaitFD() int   { return r.fd }
func (r socketRx) Woken()        {}
func (r socketRx) Polled() bool  { return true }
func (r socketRx) Fault() string { return r.fault }
func (r socketRx) Close()        {}

type socketTx struct{ *Socket }

func (t socketTx) Send(b *packet.Batch, order []uint8) int {
	slot := t.bytes[packet.BatchSize*socketSlot:][:socketSlot]
	for n, i := range order {
		f := &b.Frames[i]
		if f.Len() > socketSlot {
			f.Drop = packet.DropOversizeFrame
			continue
		}
		if _, err := unix.Write(t.fd, slot[:b.Gather(f, slot)]); err != nil {
			return n
		}
	}
	return len(order)
}

func (t socketTx) Flush()         {}
func (t socketTx) Postpone() bool { return false }
func (t socketTx) MTU() int       { return socketSlot }

func (t socketTx) Offloads() packet.Offloads { return 0 }
func (t socketTx) Close()                    {}

// SPDX-License-Identifier: Apache-2.0

package tap

import (
	"runtime"

	"golang.org/x/sys/unix"

	"weft/internal/iovec"
	"weft/packet"
)

// maxVectors is the maximum number of vectors of one writev (UIO_MAXIOV). A frame
// needs one vector for the virtio-net header, one for its header and one for each
// span.
const maxVectors = iovec.Max

// txQueue writes frames to one descriptor of a tap. A worker owns it.
type txQueue struct {
	iovec.TxQueue
	vnet  *[packet.VnetLen]byte // virtio-net header of the frame being sent; nil if the tap's frames have none
	takes packet.Offloads
}

func newTx(fd int, s spec) (*txQueue, error) {
	const size = maxVectors*iovec.Size + packet.VnetLen
	q := &txQueue{takes: s.Takes}
	var err error
	if q.Queue, err = iovec.OpenQueue(fd, maxVectors, size); err != nil {
		return nil, err
	}
	q.Longest = s.MTU + overhead
	if s.Vnet {
		q.vnet = (*[packet.VnetLen]byte)(q.Mem[maxVectors*iovec.Size:])
	}
	return q, nil
}

// Send writes each frame with one writev, without copying it. If the kernel is out of
// buffers, Send stops. It returns the number of frames handled so far.
func (q *txQueue) Send(b *packet.Batch, order []uint8) int {
	for taken, i := range order {
		f := &b.Frames[i]
		if f.SegmentLen() > q.Longest {
			f.Drop = packet.DropOversizeFrame
			continue
		}
		n := q.gather(b, f)
		if n == 0 {
			f.Drop = packet.DropTxFailed
			continue
		}
		switch q.WriteTo(q.FD, n) {
		case 0:
		case unix.EAGAIN, unix.ENOBUFS, unix.ENOMEM:
			return taken
		default:
			// The device or the kernel refuses the frame. EIO: the link is down.
			// EINVAL: the frame is too short. EBADFD: the device is gone. EFAULT: the
			// memory of a span is gone.
			f.Drop = packet.DropTxFailed
		}
	}
	runtime.KeepAlive(b)
	return len(order)
}

// gather sets the vectors to the header and spans of f and returns the number of
// vectors. It returns 0 if the frame is empty or has too many spans for one call.
func (q *txQueue) gather(b *packet.Batch, f *packet.Frame) int {
	header, spans := f.Header(), b.Spans(f)
	if f.Len() == 0 || 2+len(spans) > maxVectors {
		return 0
	}
	n := 0
	if q.vnet != nil {
		f.EncodeVnet(q.vnet)
		q.Vectors[0] = iovec.Vector{Base: iovec.Address(q.vnet[:]), Len: packet.VnetLen}
		n = 1
	}
	if len(header) > 0 {
		q.Vectors[n] = iovec.Vector{Base: iovec.Address(header), Len: uintptr(len(header))}
		n++
	}
	for _, s := range spans {
		q.Vectors[n] = iovec.Vector{Base: s.Addr, Len: uintptr(s.Len)}
		n++
	}
	return n
}

// Offloads returns the offloads that frames given to Send may leave unfinished: all
// that the kernel supports, or none if the tap has no virtio-net header.
func (q *txQueue) Offloads() packet.Offloads { return q.takes }

// SPDX-License-Identifier: Apache-2.0

package tap

import (
	"runtime"

	"golang.org/x/sys/unix"

	"weft/internal/iovec"
	"weft/packet"
)

// maxVectors is the largest number of vectors that one writev(2) takes (UIO_MAXIOV).
const maxVectors = iovec.Max

// txQueue writes frames to one descriptor of a tap. A worker owns it.
type txQueue struct {
	iovec.TxQueue
	vnet     *[packet.VnetLen]byte // virtio-net header; nil: none
	offloads packet.Offloads
}

func newTx(fd int, s spec) (*txQueue, error) {
	const size = maxVectors*iovec.Size + packet.VnetLen
	q := &txQueue{offloads: s.Takes}
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

// Send writes each frame with one writev(2), without copying it. It stops if the kernel is out of
// buffers. It returns the number of frames handled.
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
			// EIO: the link is down. EINVAL: the frame is too short. EBADFD: the
			// device is gone. EFAULT: the memory of a span is gone.
			f.Drop = packet.DropTxFailed
		}
	}
	runtime.KeepAlive(b)
	return len(order)
}

// gather fills the queue's I/O vectors with the virtio-net header, the header buffer and the spans of f, and
// returns their number. It returns 0 for an empty frame and for a frame with too many spans.
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

// Offloads returns the offloads that frames to the tap may use. Without a virtio-net header there are
// none.
func (q *txQueue) Offloads() packet.Offloads { return q.offloads }

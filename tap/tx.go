package tap

import (
	"runtime"

	"golang.org/x/sys/unix"

	"weft/internal/iovec"
	"weft/packet"
)

// maxVectors is what one writev takes (UIO_MAXIOV): a virtio-net header, a header
// and the spans.
const maxVectors = iovec.Max

// txQueue writes frames to one descriptor of a tap. Worker owns.
type txQueue struct {
	fd    int
	mtu   int    // longest frame, Ethernet header and a tag included
	mem   []byte // vectors; outside of the Go heap
	iov   []iovec.Vector
	iovAt uintptr
	vnet  *[packet.VnetLen]byte // nil: frames have none
	takes packet.Offloads
}

func newTx(fd int, s spec) (*txQueue, error) {
	const size = maxVectors*iovec.Size + packet.VnetLen
	mem, err := iovec.Map(size)
	if err != nil {
		return nil, err
	}
	q := &txQueue{fd: fd, mtu: s.MTU + overhead, mem: mem, iov: iovec.View(mem, maxVectors), iovAt: iovec.Address(mem), takes: s.Takes}
	if s.Vnet {
		q.vnet = (*[packet.VnetLen]byte)(mem[maxVectors*iovec.Size:])
	}
	return q, nil
}

// Send writes each frame with one writev from where it lies. It stops, and
// leaves the rest, where the kernel is out of buffers.
func (q *txQueue) Send(b *packet.Batch, order []uint8) int {
	for taken, i := range order {
		f := &b.Frames[i]
		if f.SegmentLen() > q.mtu {
			f.Drop = packet.DropOversizeFrame
			continue
		}
		n := q.gather(b, f)
		if n == 0 {
			f.Drop = packet.DropTxFailed
			continue
		}
		_, errno := iovec.Writev(q.fd, q.iovAt, n)
		switch errno {
		case 0:
		case unix.EAGAIN, unix.ENOBUFS, unix.ENOMEM:
			return taken
		default:
			// EIO: the link is down. EINVAL: too short. EBADFD: the device is gone.
			// EFAULT: a span's memory is gone.
			f.Drop = packet.DropTxFailed
		}
	}
	runtime.KeepAlive(b)
	return len(order)
}

// gather points the vectors to header and spans of f and returns their number,
// 0 for a frame that is empty or lies in too many pieces for one call.
func (q *txQueue) gather(b *packet.Batch, f *packet.Frame) int {
	header, spans := f.Header(), b.Spans(f)
	if f.Len() == 0 || 2+len(spans) > maxVectors {
		return 0
	}
	n := 0
	if q.vnet != nil {
		f.EncodeVnet(q.vnet)
		q.iov[0] = iovec.Vector{Base: iovec.Address(q.vnet[:]), Len: packet.VnetLen}
		n = 1
	}
	if len(header) > 0 {
		q.iov[n] = iovec.Vector{Base: iovec.Address(header), Len: uintptr(len(header))}
		n++
	}
	for _, s := range spans {
		q.iov[n] = iovec.Vector{Base: s.Addr, Len: uintptr(s.Len)}
		n++
	}
	return n
}

// Flush has nothing to publish: Send has handed the frames over.
func (q *txQueue) Flush() {}

// Postpone as Flush.
func (q *txQueue) Postpone() bool { return false }

// MTU is that of the device when control set it up, with the Ethernet header
// and one VLAN tag, which Linux does not count.
func (q *txQueue) MTU() int { return q.mtu }

// Offloads is all the kernel has, none without a virtio-net header.
func (q *txQueue) Offloads() packet.Offloads { return q.takes }

// Close unmaps the vectors. The descriptor is the device's.
func (q *txQueue) Close() {
	if q.mem != nil {
		_ = unix.Munmap(q.mem)
		q.mem, q.iov, q.vnet = nil, nil, nil
	}
}

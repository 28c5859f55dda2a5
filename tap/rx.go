package tap

import (
	"golang.org/x/sys/unix"

	"weft/internal/iovec"
	"weft/packet"
)

// rxQueue reads frames from one descriptor of a tap. Worker owns.
type rxQueue struct {
	fd      int
	mem     []byte // vectors, then buffers; outside of the Go heap
	iov     []iovec.Vector
	iovAt   uintptr
	buffers uintptr // address of the first buffer
	length  int     // of a buffer
	lent    int     // buffers in use until Release, the first of them
	read    int     // bytes in them
	vnet    *[packet.VnetLen]byte
	before  int // bytes of the virtio-net header, 0 without one
	takes   packet.Offloads
	fault   string
}

// vectorBytes is the room of three vectors and the virtio-net header before the
// buffers, one cache line.
const (
	vectorBytes = 64
	vnetAt      = 3 * iovec.Size
)

func newRx(fd int, s spec) (*rxQueue, error) {
	length, before := bufferLen, 0
	if s.Vnet {
		length, before = largeBufferLen, packet.VnetLen
	}
	mem, err := iovec.Map(vectorBytes + buffers*length)
	if err != nil {
		return nil, err
	}
	q := &rxQueue{fd: fd, mem: mem, iov: iovec.View(mem, 3), iovAt: iovec.Address(mem), buffers: iovec.Address(mem) + vectorBytes,
		length: length, before: before, takes: s.Takes, vnet: (*[packet.VnetLen]byte)(mem[vnetAt:])}
	q.iov[0] = iovec.Vector{Base: iovec.Address(q.vnet[:]), Len: uintptr(before)}
	return q, nil
}

// Recv reads frame by frame until none is waiting. The spans are the queue's
// buffers, valid until Release. A frame longer than a buffer was cut by the
// kernel and gets its Drop set.
func (q *rxQueue) Recv(b *packet.Batch) int {
	if q.fault != "" {
		return -1
	}
	n := 0
	for ; !b.Full() && q.lent < buffers && q.read < iovec.BatchBytes && b.SpansLeft() > 0; n++ {
		f, header := b.Next()
		buffer := q.buffers + uintptr(q.lent*q.length)
		q.iov[1] = iovec.Vector{Base: iovec.Address(header[:]), Len: headerLen}
		q.iov[2] = iovec.Vector{Base: buffer, Len: uintptr(q.length)}
		got, errno := iovec.Readv(q.fd, q.iovAt, 3)
		if errno != 0 {
			if !q.goesOn(errno) && n == 0 {
				return -1
			}
			break
		}
		if q.before > 0 {
			got = max(got-q.before, 0)
			f.DecodeVnet(q.vnet, q.takes, true)
		}
		if got > headerLen {
			b.AddSpan(f, buffer, uint32(got-headerLen))
			q.lent++
			q.read += got
		}
		if got == headerLen+q.length {
			f.Drop = packet.DropOversizeFrame
		}
		b.Commit(f, min(got, headerLen))
	}
	return n
}

// goesOn tells whether the queue outlives the error of a read.
func (q *rxQueue) goesOn(errno unix.Errno) bool {
	switch errno {
	case unix.EAGAIN:
		return true
	case unix.ENOMEM, unix.ENOBUFS:
		return true // of this moment; the descriptor stays readable
	case unix.EBADFD, unix.EFAULT:
		// What tun answers once its device was deleted, before and after it let
		// go of the descriptor.
		q.fault = "the tap device was removed"
	default:
		q.fault = errno.Error()
	}
	return false
}

// Release lets the buffers be read into again.
func (q *rxQueue) Release() { q.lent, q.read = 0, 0 }

// Arm and Disarm have nothing to ask for: the descriptor is readable as long as
// a frame waits.
func (q *rxQueue) Arm() bool { return false }
func (q *rxQueue) Disarm()   {}

// WaitFD is the tap's descriptor; Woken need not drain it, reading frames does.
func (q *rxQueue) WaitFD() int { return q.fd }
func (q *rxQueue) Woken()      {}

// Polled: finding nothing costs a system call.
func (q *rxQueue) Polled() bool { return true }

// Fault says why Recv fails.
func (q *rxQueue) Fault() string { return q.fault }

// Close unmaps the buffers. The descriptor is the device's.
func (q *rxQueue) Close() {
	if q.mem != nil {
		_ = unix.Munmap(q.mem)
		q.mem, q.iov, q.vnet, q.fault = nil, nil, nil, "closed"
	}
}

package tap

import (
	"golang.org/x/sys/unix"

	"weft/internal/iovec"
	"weft/packet"
)

// rxQueue reads frames from one descriptor of a tap. The worker owns it.
type rxQueue struct {
	fd      int
	mem     []byte // vectors, then buffers; outside of the Go heap
	iov     []iovec.Vector
	iovAt   uintptr
	buffers uintptr // address of the first buffer
	length  int     // length of a buffer in bytes
	lent    int     // number of buffers in use until Release, from the first one on
	read    int     // number of bytes read since Release
	vnet    *[packet.VnetLen]byte
	before  int // length of the virtio-net header in bytes, 0 without one
	takes   packet.Offloads
	fault   string
}

// vectorBytes is the space before the buffers for three vectors and the virtio-net
// header: one cache line.
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

// Recv reads one frame a call until none waits. The spans are the queue's buffers and
// are valid until Release. The kernel truncates a frame longer than a buffer; such a
// frame gets its Drop set.
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

// goesOn reports whether the queue survives a read error. If not, it sets the fault.
func (q *rxQueue) goesOn(errno unix.Errno) bool {
	switch errno {
	case unix.EAGAIN:
		return true
	case unix.ENOMEM, unix.ENOBUFS:
		return true // temporary; the descriptor stays readable
	case unix.EBADFD, unix.EFAULT:
		// tun returns these errors after its device is deleted: one before it
		// releases the descriptor, the other afterwards.
		q.fault = "the tap device was removed"
	default:
		q.fault = errno.Error()
	}
	return false
}

// Release makes all buffers available for reading again.
func (q *rxQueue) Release() { q.lent, q.read = 0, 0 }

// Arm and Disarm do nothing: the descriptor stays readable while a frame waits.
func (q *rxQueue) Arm() bool { return false }
func (q *rxQueue) Disarm()   {}

// WaitFD returns the tap's descriptor. Woken does nothing, because reading frames
// drains the descriptor.
func (q *rxQueue) WaitFD() int { return q.fd }
func (q *rxQueue) Woken()      {}

// Polled returns true: a Recv that finds nothing costs a system call.
func (q *rxQueue) Polled() bool { return true }

// Fault returns the reason why Recv fails, or "".
func (q *rxQueue) Fault() string { return q.fault }

// Close unmaps the buffers. The device owns and closes the descriptor.
func (q *rxQueue) Close() {
	if q.mem != nil {
		_ = unix.Munmap(q.mem)
		q.mem, q.iov, q.vnet, q.fault = nil, nil, nil, "closed"
	}
}

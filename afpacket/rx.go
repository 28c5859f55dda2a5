package afpacket

import (
	"encoding/binary"

	"golang.org/x/sys/unix"

	"weft/internal/iovec"
	"weft/packet"
)

// rxQueue reads from one packet socket. Worker owns.
type rxQueue struct {
	fd      int
	mem     []byte // vectors, virtio-net header, outer headers of a train; then buffers
	iov     []iovec.Vector
	iovAt   uintptr
	vnet    *[packet.VnetLen]byte
	buffers uintptr // address of the first buffer
	first   int     // buffer lent first
	lent    int     // buffers lent, after first, until Release
	train   train   // that is being taken apart
	fault   string
}

// train is a large UDP datagram, of which frames are made that the next batch has
// room for.
type train struct {
	at, left uintptr // what is left of the payload: address, bytes
	size     uintptr // payload of each
	outer    int     // bytes of the headers up to and including UDP's
	l3, l4   int     // offsets in them
	header   [maxOuter]byte
}

// maxOuter is the longest outer header up to and including UDP: Ethernet, a tag,
// IPv6.
const maxOuter = 14 + 4 + 40 + 8

const (
	vnetAt      = 2 * iovec.Size
	vectorBytes = 64
)

func newRx(fd int) (*rxQueue, error) {
	mem, err := iovec.Map(vectorBytes + buffers*bufferLen)
	if err != nil {
		return nil, err
	}
	q := &rxQueue{fd: fd, mem: mem, iov: iovec.View(mem, 2), iovAt: iovec.Address(mem),
		vnet: (*[packet.VnetLen]byte)(mem[vnetAt:]), buffers: iovec.Address(mem) + vectorBytes}
	q.iov[0] = iovec.Vector{Base: iovec.Address(q.vnet[:]), Len: packet.VnetLen}
	return q, nil
}

// Recv reads datagram by datagram until none is waiting. The spans are the queue's
// buffers, valid until Release.
func (q *rxQueue) Recv(b *packet.Batch) int {
	if q.fault != "" {
		return -1
	}
	was, read := b.N, 0
	for !b.Full() && b.SpansLeft() > 0 {
		if q.train.left > 0 {
			q.nextOfTrain(b)
			continue
		}
		if q.lent == buffers || read >= iovec.BatchBytes {
			break
		}
		at := q.buffers + uintptr((q.first+q.lent)%buffers)*bufferLen
		q.iov[1] = iovec.Vector{Base: at, Len: bufferLen}
		got, errno := iovec.Readv(q.fd, q.iovAt, 2)
		if errno != 0 {
			if !q.goesOn(errno) && b.N == was {
				return -1
			}
			break
		}
		q.lent++
		read += got
		q.note(b, at, max(got-packet.VnetLen, 0))
	}
	return b.N - was
}

// goesOn tells whether the queue outlives the error of a read.
func (q *rxQueue) goesOn(errno unix.Errno) bool {
	switch errno {
	case unix.EAGAIN, unix.ENOBUFS, unix.ENOMEM:
		return true
	case unix.ENETDOWN: // told once when the device goes down; it may come up again
		return true
	case unix.ENXIO, unix.ENODEV:
		q.fault = "the device was removed"
	default:
		q.fault = errno.Error()
	}
	return false
}

// note makes a frame of n bytes at addr, or begins a train.
func (q *rxQueue) note(b *packet.Batch, addr uintptr, n int) {
	if q.vnet[1] == vnetUDP && q.beginTrain(addr, n) {
		return
	}
	f, header := b.Next()
	f.SetOrigin(addr)
	k := copy(header[:rxHeader], packet.Foreign(addr, uint32(n)))
	f.DecodeVnet(q.vnet, packet.TakesAll, false) // what it says of validity is the outer checksum's
	if n > k {
		b.AddSpan(f, addr+uintptr(k), uint32(n-k))
	}
	if n >= bufferLen {
		f.Drop = packet.DropOversizeFrame // cut by the kernel
	}
	b.Commit(f, k)
}

// vnetUDP is the gso_type of a train, or of large datagrams in a tunnel.
const vnetUDP = 5

// beginTrain tells whether n bytes at addr are UDP datagrams of equal size of which
// the outer header is the only one: its checksum is what is to be finished.
func (q *rxQueue) beginTrain(addr uintptr, n int) bool {
	t := &q.train
	h := t.header[:copy(t.header[:], packet.Foreign(addr, uint32(min(n, maxOuter))))]
	l3, l4 := outerOffsets(h)
	size := binary.LittleEndian.Uint16(q.vnet[4:])
	if l4 == 0 || int(binary.LittleEndian.Uint16(q.vnet[6:])) != l4 || size == 0 || n <= l4+packet.UDPLen {
		return false
	}
	t.l3, t.l4, t.outer = l3, l4, l4+packet.UDPLen
	t.at, t.left, t.size = addr+uintptr(t.outer), uintptr(n-t.outer), uintptr(size)
	return true
}

// outerOffsets finds IP and UDP behind Ethernet and at most one tag; 0 where h has
// anything else.
func outerOffsets(h []byte) (l3, l4 int) {
	if len(h) < ethernetLen {
		return 0, 0
	}
	etherType, l3 := packet.Ethernet(h).Type(), ethernetLen
	if packet.IsVLAN(etherType) && len(h) >= l3+packet.VLANLen {
		etherType = binary.BigEndian.Uint16(h[l3+2:])
		l3 += packet.VLANLen
	}
	switch {
	case etherType == packet.EtherTypeIPv4 && len(h) >= l3+packet.IPv4Len+packet.UDPLen && h[l3] == 0x45 && h[l3+9] == packet.ProtoUDP:
		return l3, l3 + packet.IPv4Len
	case etherType == packet.EtherTypeIPv6 && len(h) >= l3+packet.IPv6Len+packet.UDPLen && h[l3]>>4 == 6 && h[l3+6] == packet.ProtoUDP:
		return l3, l3 + packet.IPv6Len
	}
	return 0, 0
}

// setLength makes the train's outer header that of a datagram of n bytes.
func (t *train) setLength(n int) {
	packet.UDP(t.header[t.l4:]).SetLen(n + packet.UDPLen)
	if ip := t.header[t.l3:t.l4]; len(ip) == packet.IPv4Len {
		v4 := packet.IPv4(ip)
		v4.SetTotalLen(t.outer - t.l3 + n)
		v4.SetChecksum(0)
		v4.SetChecksum(packet.Checksum(ip))
	} else {
		packet.IPv6(ip).SetPayloadLen(packet.UDPLen + n)
	}
}

// nextOfTrain makes a frame of the train's next datagram, or one large frame of as
// many as go together. The IPv4 identification is the same in all: nothing looks at
// it.
func (q *rxQueue) nextOfTrain(b *packet.Batch) {
	t := &q.train
	n := min(t.size, t.left)
	f, header := b.Next()
	m := copy(header[t.outer:rxHeader], packet.Foreign(t.at, uint32(n)))
	if taken := b.JoinTrain(f, t.outer+m, t.outer, t.outer+vxlanLen, t.at, t.left, t.size); taken > 0 {
		t.setLength(f.Len() - t.outer)
		copy(header[:], t.header[:t.outer])
		t.at, t.left = t.at+taken, t.left-taken
		return
	}
	f.SetOrigin(t.at - uintptr(t.outer)) // of what follows the outer header
	t.setLength(int(n))
	copy(header[:], t.header[:t.outer])
	if rest := n - uintptr(m); rest > 0 {
		b.AddSpan(f, t.at+uintptr(m), uint32(rest))
	}
	b.Commit(f, t.outer+m)
	t.at, t.left = t.at+n, t.left-n
}

// vxlanLen is the length of the VXLAN header, which nobody here looks at.
const vxlanLen = 8

// Release lets the buffers be read into again, but for one that holds the rest of
// a train: the first ones, which are in the cache, rather than all in turn.
func (q *rxQueue) Release() {
	if q.train.left == 0 {
		q.first, q.lent = 0, 0
		return
	}
	q.first, q.lent = (q.first+q.lent-1)%buffers, 1
}

// Arm has nothing to ask for: the descriptor is readable as long as a datagram
// waits. The rest of a train must not be slept over.
func (q *rxQueue) Arm() bool { return q.train.left > 0 }

// Disarm takes nothing back.
func (q *rxQueue) Disarm() {}

// WaitFD is the socket; Woken need not drain it, reading does.
func (q *rxQueue) WaitFD() int { return q.fd }
func (q *rxQueue) Woken()      {}

// Polled: finding nothing costs a system call.
func (q *rxQueue) Polled() bool { return true }

// Fault says why Recv fails.
func (q *rxQueue) Fault() string { return q.fault }

// Close unmaps the buffers. The socket is the device's.
func (q *rxQueue) Close() {
	if q.mem != nil {
		_ = unix.Munmap(q.mem)
		q.mem, q.iov, q.vnet, q.fault = nil, nil, nil, "closed"
	}
}

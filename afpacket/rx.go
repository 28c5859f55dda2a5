// SPDX-License-Identifier: Apache-2.0

package afpacket

import (
	"encoding/binary"

	"golang.org/x/sys/unix"

	"weft/internal/iovec"
	"weft/packet"
)

// rxQueue reads from one packet socket. A worker owns it.
type rxQueue struct {
	iovec.RxQueue // memory: the vectors of readv and the virtio-net header, then the buffers
	vnet          *[packet.VnetLen]byte
	buffers       uintptr // address of the first buffer
	first         int     // index of the first lent buffer
	lent          int     // number of buffers that frames use until Release, from the index in the field first on
	train         train   // train of datagrams that Recv has not returned completely
}

// train is a large UDP datagram that contains several datagrams. nextOfTrain makes
// frames of it until the batch is full; the rest goes into the next batch.
type train struct {
	at, left uintptr // address and length in bytes of the payload that is not in a frame yet
	size     uintptr // UDP payload of each datagram in bytes
	outer    int     // length in bytes of the outer headers, from Ethernet to UDP
	l3, l4   int     // offsets of IP and UDP in header
	header   [maxOuter]byte
}

// maxOuter is the maximum length in bytes of the outer headers up to UDP: Ethernet,
// one VLAN tag, IPv6, UDP.
const maxOuter = 14 + 4 + 40 + 8

const (
	vnetAt      = 2 * iovec.Size
	vectorBytes = 64
)

func newRx(fd int) (*rxQueue, error) {
	q := &rxQueue{}
	var err error
	if q.Queue, err = iovec.OpenQueue(fd, 2, vectorBytes+buffers*bufferLen); err != nil {
		return nil, err
	}
	q.vnet, q.buffers = (*[packet.VnetLen]byte)(q.Mem[vnetAt:]), iovec.Address(q.Mem)+vectorBytes
	q.Vectors[0] = iovec.Vector{Base: iovec.Address(q.vnet[:]), Len: packet.VnetLen}
	return q, nil
}

// Recv reads datagrams or trains, one with each system call, until none waits or the
// batch is full. The spans refer to the queue's buffers and are valid until Release.
func (q *rxQueue) Recv(b *packet.Batch) int {
	if q.Broken != "" {
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
		q.Vectors[1] = iovec.Vector{Base: at, Len: bufferLen}
		got, errno := q.Read(2)
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

// goesOn reports whether the queue is still usable after a read error. If not, it
// records the fault.
func (q *rxQueue) goesOn(errno unix.Errno) bool {
	switch errno {
	case unix.EAGAIN, unix.ENOBUFS, unix.ENOMEM:
		return true
	case unix.ENETDOWN: // the socket reports once that the device is down; the device may come up again
		return true
	case unix.ENXIO, unix.ENODEV:
		q.Broken = "the device was removed"
	default:
		q.Broken = errno.Error()
	}
	return false
}

// note handles the n bytes that were just read to the address addr. If they are one
// large datagram with several tunnel datagrams, they become the queue's train.
// Otherwise they are added to the batch as a frame.
func (q *rxQueue) note(b *packet.Batch, addr uintptr, n int) {
	if q.vnet[1] == vnetUDP && q.beginTrain(addr, n) {
		return
	}
	f, header := b.Next()
	f.SetOrigin(addr)
	k := copy(header[:rxHeader], packet.Foreign(addr, uint32(n)))
	f.DecodeVnet(q.vnet, packet.TakesAll, false) // not trusted: the kernel's "checksum valid" only covers the outer checksum
	if n > k {
		b.AddSpan(f, addr+uintptr(k), uint32(n-k))
	}
	if n >= bufferLen {
		f.Drop = packet.DropOversizeFrame // truncated by the kernel
	}
	b.Commit(f, k)
}

// vnetUDP is the gso_type of a train of datagrams. Large UDP datagrams inside a
// tunnel have the same gso_type.
const vnetUDP = 5

// beginTrain reports whether the n bytes at addr are a train: one large datagram with
// several tunnel datagrams. If so, it stores them as the queue's current train. A
// large UDP datagram inside a tunnel has the same gso_type. The unfinished checksum
// distinguishes them: in a train it is the outer checksum, in a large datagram inside
// a tunnel it is the inner checksum.
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

// outerOffsets returns the offsets of the outer IP and UDP headers behind Ethernet
// and at most one VLAN tag. It returns zeros for any other frame.
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

// setLength writes the length fields of the train's outer headers for n bytes of UDP
// payload.
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

// nextOfTrain appends one frame from the train of datagrams: a large frame of as many
// datagrams as JoinTrain can merge, or otherwise the next datagram. All frames of a
// train have the same outer IPv4 identification, which nothing reads.
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
	f.SetOrigin(t.at - uintptr(t.outer)) // start of a frame whose UDP payload is at t.at; only the payload is really in this memory
	t.setLength(int(n))
	copy(header[:], t.header[:t.outer])
	if rest := n - uintptr(m); rest > 0 {
		b.AddSpan(f, t.at+uintptr(m), uint32(rest))
	}
	b.Commit(f, t.outer+m)
	t.at, t.left = t.at+n, t.left-n
}

// vxlanLen is the length in bytes of the VXLAN header. This package does not
// interpret the header.
const vxlanLen = 8

// Release makes the buffers available for the next reads. If a train was returned
// only in part, its buffer stays in use. The next read starts with the first buffer
// again, because the first buffers are in the CPU cache.
func (q *rxQueue) Release() {
	if q.train.left == 0 {
		q.first, q.lent = 0, 0
		return
	}
	q.first, q.lent = (q.first+q.lent-1)%buffers, 1
}

// Arm makes no request to the kernel: the descriptor stays readable as long as a
// datagram waits. If Recv has returned a train only in part, Arm returns true,
// because the descriptor is not readable for the rest of the train.
func (q *rxQueue) Arm() bool { return q.train.left > 0 }

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
	lent          int     // number of buffers in use until Release
	train         train   // train from which Recv has not returned all frames yet
	takesAll      bool    // the socket takes every frame of the device, and a large UDP datagram is no train
	tag           uint32  // VLAN tag that the kernel has taken off the frame that is being received; 0: none
}

// train is a received train: datagrams of one flow that the kernel has merged. nextOfTrain makes
// frames from it.
type train struct {
	addr, length uintptr // address and length in bytes of the remaining payload
	size         uintptr // UDP payload of each datagram in bytes
	outer        int     // length in bytes of the outer headers, up to and including UDP
	l3, l4       int     // offsets of IP and UDP in header
	header       [maxOuter]byte
}

// maxOuter is the largest length in bytes of the outer headers, up to and including
// UDP.
const maxOuter = 14 + 4 + 40 + 8

const (
	vnetAt      = 2 * iovec.Size
	vectorBytes = 64
)

func newRx(fd int) (*rxQueue, error) {
	q := &rxQueue{}
	return q, q.init(fd)
}

func (q *rxQueue) init(fd int) (err error) {
	if q.Queue, err = iovec.OpenQueue(fd, 2, vectorBytes+buffers*bufferLen); err != nil {
		return err
	}
	q.vnet, q.buffers = (*[packet.VnetLen]byte)(q.Mem[vnetAt:]), iovec.Address(q.Mem)+vectorBytes
	q.Vectors[0] = iovec.Vector{Base: iovec.Address(q.vnet[:]), Len: packet.VnetLen}
	return nil
}

// buffer returns the address of the next free buffer. If the caller uses the buffer, it adds 1 to q.lent, the
// number of buffers in use.
func (q *rxQueue) buffer() uintptr { return q.buffers + uintptr((q.first+q.lent)%buffers)*bufferLen }

// Recv reads datagrams, one per system call, until none waits or the batch is full. A system call may
// also return a train (merged datagrams), from which Recv makes several frames. The spans refer to the
// queue's buffers and are valid until Release.
func (q *rxQueue) Recv(b *packet.Batch) int {
	if q.Broken != "" {
		return -1
	}
	was, read := b.N, 0
	for !b.Full() && b.SpansLeft() > 0 {
		if q.train.length > 0 {
			q.nextOfTrain(b)
			continue
		}
		if q.lent == buffers || read >= iovec.BatchBytes {
			break
		}
		at := q.buffer()
		q.Vectors[1] = iovec.Vector{Base: at, Len: bufferLen}
		got, errno := q.Read(2)
		if errno == unix.EINVAL {
			q.unknown(b)
			continue
		}
		if errno != 0 {
			if !q.goesOn(errno) && b.N == was {
				return -1
			}
			break
		}
		q.lent++
		read += got
		q.note(b, q.vnet, at, max(got-packet.VnetLen, 0))
	}
	return b.N - was
}

// goesOn reports whether the queue can still be used after a read error. If it cannot, goesOn stores
// the reason in q.Broken.
func (q *rxQueue) goesOn(errno unix.Errno) bool {
	switch errno {
	case unix.EAGAIN, unix.ENOBUFS, unix.ENOMEM:
		return true
	case unix.ENETDOWN: // the socket reports once that the device is down; it may come up again
		return true
	case unix.ENXIO, unix.ENODEV:
		q.Broken = "the device was removed"
	default:
		q.Broken = errno.Error()
	}
	return false
}

// unknown appends an empty frame with the reason DropBadOffload. The frame stands for a received frame whose
// kind of segmentation the virtio-net header cannot express. The kernel has already removed the received
// frame from the socket.
func (q *rxQueue) unknown(b *packet.Batch) {
	f, _ := b.Next()
	f.Drop = packet.DropBadOffload
	b.Commit(f, 0)
}

// note appends a received frame to the batch: the n bytes at addr, with the virtio-net header vnet. If the
// bytes are a train (merged datagrams), note stores the train in q.train instead.
func (q *rxQueue) note(b *packet.Batch, vnet *[packet.VnetLen]byte, addr uintptr, n int) {
	if vnet[1] == vnetUDP && !q.takesAll && q.beginTrain(vnet, addr, n) {
		return
	}
	if q.tag != 0 {
		q.noteTagged(b, vnet, addr, n)
		return
	}
	f, header := b.Next()
	f.SetOrigin(addr)
	k := copy(header[:rxHeader], packet.Foreign(addr, uint32(n)))
	// the header's mark "checksum is valid" is not trusted, because it is about the outer checksum
	// only
	f.DecodeVnet(vnet, packet.TakesAll, false)
	if n > k {
		b.AddSpan(f, addr+uintptr(k), uint32(n-k))
	}
	if n >= bufferLen {
		f.Drop = packet.DropOversizeFrame // truncated by the kernel
	}
	b.Commit(f, k)
}

// vnetUDP is the gso_type of a train, and of a large UDP datagram inside a tunnel.
const vnetUDP = 5

// beginTrain reports whether the n bytes at addr are a train. If they are, it stores the train in
// q.train. A large UDP datagram inside a tunnel has the same gso_type, but its header names the inner
// checksum as unfinished, not the outer one.
func (q *rxQueue) beginTrain(vnet *[packet.VnetLen]byte, addr uintptr, n int) bool {
	t := &q.train
	h := t.header[:copy(t.header[:], packet.Foreign(addr, uint32(min(n, maxOuter))))]
	l3, l4 := outerOffsets(h)
	size := binary.LittleEndian.Uint16(vnet[4:])
	if l4 == 0 || int(binary.LittleEndian.Uint16(vnet[6:])) != l4 || size == 0 || n <= l4+packet.UDPLen {
		return false
	}
	t.l3, t.l4, t.outer = l3, l4, l4+packet.UDPLen
	t.addr, t.length, t.size = addr+uintptr(t.outer), uintptr(n-t.outer), uintptr(size)
	return true
}

// outerOffsets returns the offsets of the outer IP and UDP headers of a frame that begins with h. The frame
// may have one VLAN tag. The result is zeros if the frame is not UDP, or if the IP header has options or
// extension headers.
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

// setLength sets the lengths in t.header, and IPv4's checksum, for n bytes of UDP payload.
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

// nextOfTrain appends one frame of the train to the batch. If JoinTrain can merge the next datagrams, this is
// a large frame, otherwise the next datagram.
func (q *rxQueue) nextOfTrain(b *packet.Batch) {
	t := &q.train
	n := min(t.size, t.length)
	f, header := b.Next()
	m := copy(header[t.outer:rxHeader], packet.Foreign(t.addr, uint32(n)))
	if taken := b.JoinTrain(f, t.outer+m, t.outer, t.outer+tunnelLen(header[t.outer:t.outer+m]), t.addr, t.length, t.size); taken > 0 {
		t.setLength(f.Len() - t.outer)
		copy(header[:], t.header[:t.outer])
		t.addr, t.length = t.addr+taken, t.length-taken
		return
	}
	// the address that the frame would have in memory if its headers directly preceded the UDP payload at t.addr
	f.SetOrigin(t.addr - uintptr(t.outer))
	t.setLength(int(n))
	copy(header[:], t.header[:t.outer])
	if rest := n - uintptr(m); rest > 0 {
		b.AddSpan(f, t.addr+uintptr(m), uint32(rest))
	}
	b.Commit(f, t.outer+m)
	t.addr, t.length = t.addr+n, t.length-n
}

// tunnelHeaderLen is the length in bytes of the part that all tunnel headers have.
const tunnelHeaderLen = 8

// tunnelLen returns the length in bytes of a tunnel header, with its options. h is the start of a
// datagram's payload. The queue does not know the kind of tunnel, so tunnelLen guesses: a header of
// version 0 with Geneve's protocol type, where VXLAN has reserved bits, is Geneve. After a wrong guess
// the datagrams are not merged, or the worker drops the frame as bad-offload. Other senders' frames
// are not affected.
func tunnelLen(h []byte) int {
	if len(h) >= tunnelHeaderLen && h[0]>>6 == 0 && binary.BigEndian.Uint16(h[2:]) == packet.EtherTypeTEB {
		return tunnelHeaderLen + 4*int(h[0]&0x3f)
	}
	return tunnelHeaderLen
}

// Release makes the buffers available for the next reads, which then use the first buffer again,
// because the CPU cache has it. The buffer of a train stays in use if Recv has not returned all its
// frames.
func (q *rxQueue) Release() {
	if q.train.length == 0 || q.lent == 0 {
		q.first, q.lent = 0, 0
		return
	}
	q.first, q.lent = (q.first+q.lent-1)%buffers, 1
}

// Arm reports whether the queue has frames of a train that Recv has not returned yet; WaitFD does not show
// them. Arm needs no request to the kernel: the descriptor stays readable as long as a datagram waits in the
// socket.
func (q *rxQueue) Arm() bool { return q.train.length > 0 }

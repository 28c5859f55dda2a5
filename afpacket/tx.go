// SPDX-License-Identifier: Apache-2.0

package afpacket

import (
	"bytes"
	"encoding/binary"
	"runtime"

	"golang.org/x/sys/unix"

	"weft/internal/iovec"
	"weft/packet"
)

// txQueue writes frames to one packet socket, and large tunnelled frames to the feeder. A worker owns
// it.
type txQueue struct {
	// memory: vectors, a virtio-net header, messages with their headers, a train
	iovec.TxQueue
	feeder   int // -1 without a feeder
	accepted int // result of Taken
	trains   bool
	takesAll bool   // the port is that of a device, which gets no large tunnelled frames
	vnet     []byte // virtio-net header of a large frame
	ordinary messageList
	train    txTrain
}

// maxTrain is the largest UDP payload in bytes of a train over IPv4 or IPv6.
const maxTrain = 65535 - packet.IPv6Len - packet.UDPLen

// offsets in the queue's memory, behind the vectors
const (
	txVnetAt   = iovec.Max * iovec.Size
	messagesAt = txVnetAt + 64
	trainAt    = messagesAt + messageListLen
)

func newTx(fd, feeder int, s spec) (*txQueue, error) {
	q := &txQueue{feeder: feeder, trains: s.Trains, takesAll: s.All}
	var err error
	if q.Queue, err = iovec.OpenQueue(fd, iovec.Max, trainAt+trainBytes); err != nil {
		return nil, err
	}
	q.Longest = s.MTU + ethernetLen
	if s.All {
		q.Longest += packet.VLANLen // the tag does not count for the MTU (packet_snd)
	}
	q.vnet = q.Mem[txVnetAt : txVnetAt+tunnelVnetLen]
	q.ordinary.init(q.Mem[messagesAt:trainAt])
	q.train.data = q.Mem[trainAt:]
	return q, nil
}

// Send sends the frames of the list order, and returns the number of frames handled. It sends a large frame
// unsegmented if the device accepts that. It makes one system call for each large frame, for each train of
// segments, and for consecutive ordinary frames together. Send stops if the kernel is out of buffers.
func (q *txQueue) Send(b *packet.Batch, order []uint8) int {
	for n := 0; n < len(order); {
		q.accepted = n
		f := &b.Frames[order[n]]
		if f.SegmentLen() > q.Longest {
			f.Drop = packet.DropOversizeFrame
			n++
			continue
		}
		count, reason := 1, packet.DropNone
		switch {
		case f.Offload.GSO == packet.GSONone:
			count, full := q.sendOrdinary(b, order[n:])
			n += count
			if full {
				return n
			}
			continue
		case f.OuterL3 == 0:
			reason = q.write(q.FD, q.gather(b, f))
		case q.passes(f):
			reason = q.write(q.feeder, q.gatherWhole(b, f))
		default:
			count, reason = q.sendCut(b, order[n:])
		}
		if reason == packet.DropTxFull {
			return n
		} else if reason != packet.DropNone {
			for _, i := range order[n : n+count] {
				b.Frames[i].Drop = reason
			}
		}
		n += count
	}
	runtime.KeepAlive(b)
	q.accepted = len(order)
	return len(order)
}

// Taken implements port.TakingTx. It returns the number of frames that the last Send has handled, even if a
// memory fault has interrupted it. Such a fault is possible because Send reads guest memory to compute
// checksums.
func (q *txQueue) Taken() int { return q.accepted }

// write sends the bytes of the queue's first I/O vectors with one system call. vectors is their number. It
// returns the drop reason if that failed. DropTxFull means that the kernel is out of buffers.
func (q *txQueue) write(fd, vectors int) packet.DropReason {
	if vectors == 0 {
		return packet.DropTxFailed // the frame has too many pieces or none
	}
	return dropReason(q.WriteTo(fd, vectors))
}

// dropReason returns the drop reason for the error number of a system call that sends.
func dropReason(errno unix.Errno) packet.DropReason {
	switch errno {
	case 0:
		return packet.DropNone
	case unix.EAGAIN, unix.ENOBUFS, unix.ENOMEM:
		return packet.DropTxFull
	}
	return packet.DropTxFailed // device down (ENETDOWN) or gone (ENXIO)
}

// gather fills the queue's I/O vectors with a virtio-net header and the large frame f, which has no tunnel
// header. It returns the number of vectors.
func (q *txQueue) gather(b *packet.Batch, f *packet.Frame) int {
	f.EncodeVnet((*[packet.VnetLen]byte)(q.vnet))
	q.Vectors[0] = iovec.Vector{Base: iovec.Address(q.vnet), Len: packet.VnetLen}
	return q.add(1, b, f, 0)
}

// add fills the queue's I/O vectors from number n on with the bytes of frame f, without its first skip bytes.
// It returns the number of the next free vector, or 0 if there are too few vectors.
func (q *txQueue) add(n int, b *packet.Batch, f *packet.Frame, skip int) int {
	header, spans := f.Header()[skip:], b.Spans(f)
	if n+1+len(spans) > len(q.Vectors) || len(header) == 0 {
		return 0
	}
	q.Vectors[n] = iovec.Vector{Base: iovec.Address(header), Len: uintptr(len(header))}
	n++
	for _, s := range spans {
		q.Vectors[n] = iovec.Vector{Base: s.Addr, Len: uintptr(s.Len)}
		n++
	}
	return n
}

// sameOuter reports whether two frames have the same outer headers. It ignores lengths,
// IPv4 identification and checksums.
func sameOuter(f, g *packet.Frame) bool {
	if f.OuterL3 != g.OuterL3 || f.OuterL4 != g.OuterL4 {
		return false
	}
	l3, l4 := f.OuterL3, f.OuterL4
	a, z := f.Header(), g.Header()
	if !bytes.Equal(a[:l3+2], z[:l3+2]) || !bytes.Equal(a[l4:l4+4], z[l4:l4+4]) {
		return false
	}
	if a[l3]>>4 == 4 { // compare the IPv4 flags, TTL and protocol, then the addresses
		return bytes.Equal(a[l3+6:l3+10], z[l3+6:l3+10]) && bytes.Equal(a[l3+12:l4], z[l3+12:l4])
	}
	return bytes.Equal(a[l3+2:l3+4], z[l3+2:l3+4]) && bytes.Equal(a[l3+6:l4], z[l3+6:l4])
}

// finishOuter completes the virtio-net header vnet and the outer headers h of a train. f is the train's first
// frame. total is the length of the UDP payload of the whole train in bytes, and size the length of that of
// one datagram. UDP segmentation needs a UDP checksum. The device computes it.
func finishOuter(vnet, h []byte, f *packet.Frame, size, total int) {
	l3, l4 := int(f.OuterL3), int(f.OuterL4)
	length := packet.UDPLen + total
	var pseudo uint16
	if h[l3]>>4 == 4 {
		ip := packet.IPv4(h[l3:l4])
		ip.SetTotalLen(packet.IPv4Len + length)
		ip.SetChecksum(0)
		ip.SetChecksum(packet.Checksum(ip))
		pseudo = packet.SumIPv4(ip.Src(), ip.Dst(), packet.ProtoUDP, length)
	} else {
		ip := packet.IPv6(h[l3:l4])
		ip.SetPayloadLen(length)
		pseudo = packet.SumIPv6(ip[8:], ip[24:], packet.ProtoUDP, length)
	}
	udp := packet.UDP(h[l4:])
	udp.SetLen(length)
	udp.SetChecksum(pseudo)
	finishLater(vnet, f)
	vnet[vnetGSOType] = vnetUDP
	binary.LittleEndian.PutUint16(vnet[2:], uint16(l4+packet.UDPLen))
	binary.LittleEndian.PutUint16(vnet[4:], uint16(size))
}

// Offloads returns the offloads that frames for Send may use. A kernel without UDP segmentation takes
// no trains: then an uplink takes no large frames, and a port of a device takes no large UDP
// datagrams.
func (q *txQueue) Offloads() packet.Offloads {
	switch {
	case q.takesAll && !q.trains:
		return packet.TakesAll &^ packet.TakesUDP
	case q.takesAll:
		return packet.TakesAll
	case !q.trains:
		return packet.TakesPartial | packet.TakesTunnel
	}
	return packet.TakesAll | packet.TakesTunnel
}

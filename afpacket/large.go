package afpacket

import (
	"encoding/binary"

	"weft/internal/iovec"
	"weft/packet"
)

// tunnelVnetLen is the length of the virtio-net header that has words for a tunnel
// (struct virtio_net_hdr_v1_hash_tunnel, include/uapi/linux/virtio_net.h): behind
// the ten bytes of a tap's, num_buffers and the hash, which mean nothing here, are
// the offsets of the outer UDP and the inner IP header.
const tunnelVnetLen = 24

const (
	vnetOuterL4At   = 20
	vnetInnerL3At   = 22
	vnetTunnelIPv4  = 0x20 // in gso_type
	vnetTunnelIPv6  = 0x40
	vnetTunnelSum   = 8 // in flags: the outer UDP checksum is wanted, too
	vnetFlags       = 0
	vnetGSOType     = 1
	maxOuterPayload = 65535 // what an outer length can say
)

// passes tells whether the device is given f as it is: behind an outer Ethernet
// header without a tag, as the kernel has it, and not too long for the outer
// lengths.
func (q *txQueue) passes(f *packet.Frame) bool {
	return q.feeder >= 0 && f.OuterL3 == packet.EthernetLen && f.L3 != 0 && f.Len()-int(f.OuterL3) <= maxOuterPayload
}

// gatherWhole points the vectors to a large frame in a tunnel and returns their
// number.
func (q *txQueue) gatherWhole(b *packet.Batch, f *packet.Frame) int {
	clear(q.vnet)
	f.EncodeVnet((*[packet.VnetLen]byte)(q.vnet))
	h := f.Header()
	if h[f.OuterL3]>>4 == 4 {
		q.vnet[vnetGSOType] |= vnetTunnelIPv4
	} else {
		q.vnet[vnetGSOType] |= vnetTunnelIPv6
	}
	if f.Offload.Flags&packet.OffloadOuter != 0 {
		q.vnet[vnetFlags] |= vnetTunnelSum
		udp := packet.UDP(h[f.OuterL4:]) // the header comes off after this
		udp.SetChecksum(packet.AddSums(udp.Checksum(), uint16(udp.Len())))
	}
	binary.LittleEndian.PutUint16(q.vnet[vnetOuterL4At:], f.OuterL4)
	binary.LittleEndian.PutUint16(q.vnet[vnetInnerL3At:], f.L3)
	q.iov[0] = iovec.Vector{Base: iovec.Address(q.vnet), Len: tunnelVnetLen}
	return q.add(1, b, f, 0)
}

// txTrain is a train that is being made of large frames' segments.
type txTrain struct {
	spans    []packet.Span // of one segment
	headers  []byte        // of the segments, one behind the other
	used     int           // bytes of them
	segments int
	vectors  int
	frame    *packet.Frame // whose outer header it gets
	outer    int           // bytes of that up to and including UDP's
	size     int           // UDP payload of the first
	total    int           // of all
}

const (
	// maxSegments is the number of datagrams of a train made of large frames; the
	// kernel's own limit is 128 (UDP_MAX_SEGMENTS).
	maxSegments  = 64
	headerBytes  = packet.Headroom + packet.MaxHeader
	trainHeaders = maxSegments * headerBytes
)

// sendCut cuts the first frame, which is large, into a train, to which those like it
// that follow are added as long as they fit as a whole. It returns how many frames were
// dealt with, and why not if they were not; DropTxFull: none of them was.
func (q *txQueue) sendCut(b *packet.Batch, order []uint8) (count int, why packet.DropReason) {
	first := &b.Frames[order[0]]
	q.train.begin(first)
	begun := false // something was handed over
	for _, i := range order {
		f := &b.Frames[i]
		if count > 0 && !q.train.joins(first, f) {
			break
		}
		count++
		for s := b.Segments(f); !s.Done(); {
			if q.train.full(f, len(q.iov)) {
				if why = q.writeTrain(); why != packet.DropNone {
					return count, partly(why, begun)
				}
				begun = true
				q.train.begin(first)
			}
			if !q.addSegment(&s) {
				return count, packet.DropTxFailed // in too many pieces
			}
		}
		if q.train.total%q.train.size != 0 {
			break // a shorter one is the last
		}
	}
	return count, partly(q.writeTrain(), begun)
}

// joins tells whether all of f's segments may follow those of first.
func (t *txTrain) joins(first, f *packet.Frame) bool {
	return f.Offload.GSO == first.Offload.GSO && f.SegmentLen() == first.SegmentLen() &&
		t.segments+f.SegmentCount() <= maxSegments && t.total+f.SegmentCount()*t.size <= maxTrain && sameOuter(first, f)
}

// partly: a frame of which a part is gone cannot be tried again.
func partly(why packet.DropReason, begun bool) packet.DropReason {
	if why == packet.DropTxFull && begun {
		return packet.DropTxFailed
	}
	return why
}

func (t *txTrain) begin(f *packet.Frame) {
	t.used, t.segments, t.total, t.vectors, t.frame = 0, 0, 0, 2, f
	t.outer = int(f.OuterL4) + packet.UDPLen
	t.size = f.SegmentLen() - t.outer
}

// full tells whether the train may have no room for another segment of f.
func (t *txTrain) full(f *packet.Frame, vectors int) bool {
	return t.segments == maxSegments || t.total+t.size > maxTrain ||
		t.segments > 0 && t.vectors+1+f.SpanCount() > vectors
}

// addSegment makes the next segment with its inner checksum and points vectors to
// it; false if they do not suffice.
func (q *txQueue) addSegment(s *packet.Segmenter) bool {
	t := &q.train
	n, count := s.Write(t.headers[t.used:], t.spans, t.segments == 0) // of the others' outer headers nothing is sent
	if n == 0 || t.vectors+1+count > len(q.iov) {
		return false
	}
	header := t.headers[t.used+t.outer : t.used+n]
	t.used += n
	q.iov[t.vectors] = iovec.Vector{Base: iovec.Address(header), Len: uintptr(len(header))}
	t.vectors++
	t.total += len(header)
	for _, span := range t.spans[:count] {
		q.iov[t.vectors] = iovec.Vector{Base: span.Addr, Len: uintptr(span.Len)}
		t.vectors++
		t.total += int(span.Len)
	}
	t.segments++
	return true
}

// writeTrain hands the train over; a single datagram goes as one.
func (q *txQueue) writeTrain() packet.DropReason {
	t := &q.train
	if t.segments == 0 {
		return packet.DropNone
	}
	f, header := t.frame, t.headers[:t.outer]
	if t.segments > 1 {
		q.finishOuter(header, f, t.size, t.total)
	} else {
		clear(q.vnet)
		if f.Offload.Flags&packet.OffloadOuter != 0 {
			udp := packet.UDP(header[f.OuterL4:])
			udp.SetChecksum(packet.AddSums(udp.Checksum(), uint16(udp.Len())))
			q.finishLater(f)
		}
	}
	q.iov[0] = iovec.Vector{Base: iovec.Address(q.vnet), Len: packet.VnetLen}
	q.iov[1] = iovec.Vector{Base: iovec.Address(header), Len: uintptr(t.outer)}
	return q.write(q.fd, t.vectors)
}

// finishLater has the kernel or the device finish the outer checksum.
func (q *txQueue) finishLater(f *packet.Frame) {
	const needsChecksum, offset = 1, 6
	q.vnet[vnetFlags] = needsChecksum
	binary.LittleEndian.PutUint16(q.vnet[6:], f.OuterL4)
	binary.LittleEndian.PutUint16(q.vnet[8:], offset)
}

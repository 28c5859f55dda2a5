// SPDX-License-Identifier: Apache-2.0

package afpacket

import (
	"encoding/binary"

	"weft/internal/iovec"
	"weft/packet"
)

// tunnelVnetLen is the length in bytes of the virtio-net header with tunnel fields
// (struct virtio_net_hdr_v1_hash_tunnel, include/uapi/linux/virtio_net.h). Its first
// ten bytes are the header of an ordinary tap. A tap ignores the next fields,
// num_buffers and the hash. The last fields are the offsets of the outer UDP header
// and of the inner IP header.
const tunnelVnetLen = 24

const (
	vnetOuterL4At   = 20
	vnetInnerL3At   = 22
	vnetTunnelIPv4  = 0x20 // bit of gso_type
	vnetTunnelIPv6  = 0x40
	vnetTunnelSum   = 8 // virtio-net header flag that asks the kernel to finish the outer UDP checksum too
	vnetFlags       = 0
	vnetGSOType     = 1
	maxOuterPayload = 65535 // largest value of an outer length field
)

// passes reports whether the feeder can send the large frame f unsegmented. The
// kernel requires an outer Ethernet header without a VLAN tag. The length of the
// frame must fit into the outer length fields.
func (q *txQueue) passes(f *packet.Frame) bool {
	return q.feeder >= 0 && f.OuterL3 == packet.EthernetLen && f.L3 != 0 && f.Len()-int(f.OuterL3) <= maxOuterPayload
}

// gatherWhole sets the vectors to an unsegmented large frame in a tunnel, and returns
// the number of vectors.
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
		udp := packet.UDP(h[f.OuterL4:]) // for the kernel, the unfinished outer checksum must include the length in the pseudo header
		udp.SetChecksum(packet.AddSums(udp.Checksum(), uint16(udp.Len())))
	}
	binary.LittleEndian.PutUint16(q.vnet[vnetOuterL4At:], f.OuterL4)
	binary.LittleEndian.PutUint16(q.vnet[vnetInnerL3At:], f.L3)
	q.Vectors[0] = iovec.Vector{Base: iovec.Address(q.vnet), Len: tunnelVnetLen}
	return q.add(1, b, f, 0)
}

// txTrain is a train of datagrams that is being built from the segments of large
// frames.
type txTrain struct {
	spans    []packet.Span // spans of the latest segment
	headers  []byte        // headers of all segments, back to back
	used     int           // bytes of headers in use
	segments int
	vectors  int
	frame    *packet.Frame // first frame of the train; the train is sent with its outer header
	outer    int           // length in bytes of the outer headers, from Ethernet to UDP
	size     int           // UDP payload in bytes of the first segment, which no other segment exceeds
	total    int           // UDP payload of all segments in bytes
}

const (
	// maxSegments is the maximum number of datagrams in a train that is built from
	// large frames. At this limit the train is sent and a new train begins. The
	// kernel's limit is 128 (UDP_MAX_SEGMENTS).
	maxSegments  = 64
	headerBytes  = packet.Headroom + packet.MaxHeader
	trainHeaders = maxSegments * headerBytes
)

// sendCut segments the first frame into a train and sends it. The following frames
// join the train as long as all segments of a frame fit. It returns the number of
// frames that it has handled, and the drop reason if they were not sent. DropTxFull
// means that nothing was sent.
func (q *txQueue) sendCut(b *packet.Batch, order []uint8) (count int, why packet.DropReason) {
	first := &b.Frames[order[0]]
	q.train.begin(first)
	begun := false // true once the kernel has a train of datagrams with segments of these frames
	for _, i := range order {
		f := &b.Frames[i]
		if count > 0 && !q.train.joins(first, f) {
			break
		}
		count++
		for s := b.Segments(f); !s.Done(); {
			if q.train.full(f, len(q.Vectors)) {
				if why = q.writeTrain(); why != packet.DropNone {
					return count, partly(why, begun)
				}
				begun = true
				q.train.begin(first)
			}
			if !q.addSegment(&s) {
				return count, packet.DropTxFailed // the segment has more pieces than the queue has vectors
			}
		}
		if q.train.total%q.train.size != 0 {
			break // a short segment ends the train
		}
	}
	return count, partly(q.writeTrain(), begun)
}

// joins reports whether all segments of frame f may follow the segments of the
// train's first frame.
func (t *txTrain) joins(first, f *packet.Frame) bool {
	return f.Offload.GSO == first.Offload.GSO && f.SegmentLen() == first.SegmentLen() &&
		t.segments+f.SegmentCount() <= maxSegments && t.total+f.SegmentCount()*t.size <= maxTrain && sameOuter(first, f)
}

// partly returns the drop reason after a failed write. The argument begun is true if
// a part of the frame was already sent. In this case partly turns DropTxFull into
// DropTxFailed, because the worker must not send such a frame again.
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

// full reports whether another segment of frame f might not fit into the train.
// vectors is the number of vectors of the queue.
func (t *txTrain) full(f *packet.Frame, vectors int) bool {
	return t.segments == maxSegments || t.total+t.size > maxTrain ||
		t.segments > 0 && t.vectors+1+f.SpanCount() > vectors
}

// addSegment adds the next segment to the train: it writes the segment's headers with
// the inner checksum and sets vectors to the segment. It returns false if the queue
// has too few vectors.
func (q *txQueue) addSegment(s *packet.Segmenter) bool {
	t := &q.train
	n, count := s.Write(t.headers[t.used:], t.spans, t.segments == 0) // only the first segment of a train of datagrams needs an outer header
	if n == 0 || t.vectors+1+count > len(q.Vectors) {
		return false
	}
	header := t.headers[t.used+t.outer : t.used+n]
	t.used += n
	q.Vectors[t.vectors] = iovec.Vector{Base: iovec.Address(header), Len: uintptr(len(header))}
	t.vectors++
	t.total += len(header)
	for _, span := range t.spans[:count] {
		q.Vectors[t.vectors] = iovec.Vector{Base: span.Addr, Len: uintptr(span.Len)}
		t.vectors++
		t.total += int(span.Len)
	}
	t.segments++
	return true
}

// writeTrain sends the train with one system call. A train of one segment is an
// ordinary datagram.
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
	q.Vectors[0] = iovec.Vector{Base: iovec.Address(q.vnet), Len: packet.VnetLen}
	q.Vectors[1] = iovec.Vector{Base: iovec.Address(header), Len: uintptr(t.outer)}
	return q.write(q.FD, t.vectors)
}

// finishLater sets the virtio-net header so that the kernel or the device finishes
// the outer checksum.
func (q *txQueue) finishLater(f *packet.Frame) {
	const needsChecksum, offset = 1, 6
	q.vnet[vnetFlags] = needsChecksum
	binary.LittleEndian.PutUint16(q.vnet[6:], f.OuterL4)
	binary.LittleEndian.PutUint16(q.vnet[8:], offset)
}

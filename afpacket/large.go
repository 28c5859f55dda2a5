// SPDX-License-Identifier: Apache-2.0

package afpacket

import (
	"encoding/binary"

	"weft/internal/iovec"
	"weft/packet"
)

// tunnelVnetLen is the length in bytes of the virtio-net header with tunnel fields
// (struct virtio_net_hdr_v1_hash_tunnel, include/uapi/linux/virtio_net.h). The first
// ten bytes are the ordinary header. The last fields are the offsets of the outer UDP
// header and of the inner IP header; a tap ignores the fields before them.
const tunnelVnetLen = 24

const (
	vnetOuterL4At   = 20
	vnetInnerL3At   = 22
	vnetTunnelIPv4  = 0x20 // bit of gso_type
	vnetTunnelIPv6  = 0x40
	vnetTunnelSum   = 8 // flag: finish the outer UDP checksum, too
	vnetFlags       = 0
	vnetGSOType     = 1
	maxOuterPayload = 65535 // largest value of an outer length field
)

// passes reports whether the feeder (a tap for large tunnelled frames) can send the large frame f
// unsegmented. The frame must have no VLAN tag outside of the tunnel, and its length must fit into the outer
// headers.
func (q *txQueue) passes(f *packet.Frame) bool {
	return q.feeder >= 0 && f.OuterL3 == packet.EthernetLen && f.L3 != 0 && f.Len()-int(f.OuterL3) <= maxOuterPayload
}

// gatherWhole fills the queue's I/O vectors with the large tunnelled frame f and its virtio-net header. It
// returns the number of vectors. The feeder (a tap) sends the frame unsegmented.
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
		udp := packet.UDP(h[f.OuterL4:]) // the kernel expects the length in the unfinished outer checksum
		udp.SetChecksum(packet.AddSums(udp.Checksum(), uint16(udp.Len())))
	}
	binary.LittleEndian.PutUint16(q.vnet[vnetOuterL4At:], f.OuterL4)
	binary.LittleEndian.PutUint16(q.vnet[vnetInnerL3At:], f.L3)
	q.Vectors[0] = iovec.Vector{Base: iovec.Address(q.vnet), Len: tunnelVnetLen}
	return q.add(1, b, f, 0)
}

// txTrain is an unfinished train (datagrams sent with one system call) that consists of
// segments of large frames. Segments are copied into one piece of memory, while they are
// summed. The kernel copies one piece faster than a header and a payload of each segment
// (docs/decisions/0044).
type txTrain struct {
	data     []byte // outer headers, then the UDP payload of all segments, back to back
	segments int
	frame    *packet.Frame // first frame of the train; the train has this frame's outer headers
	outer    int           // length in bytes of the outer headers, up to and including UDP
	size     int           // largest UDP payload of a segment in bytes
	total    int           // UDP payload of all segments in bytes
}

const (
	// maxSegments is the largest number of datagrams in a train. A further segment begins
	// a new train. The kernel's limit is 128 (UDP_MAX_SEGMENTS).
	maxSegments = 64
	// trainBytes is the length of a train's memory in bytes. Outer headers with the largest
	// UDP payload fit, and so does the largest frame of a device.
	trainBytes = 66 << 10
)

// sendCut sends the segments of the first frame in the list order as a train. It adds the segments of the
// following frames as long as they fit. count is the number of frames whose segments it sent or tried to
// send. reason is the drop reason if sending failed. DropTxFull means that nothing was sent.
func (q *txQueue) sendCut(b *packet.Batch, order []uint8) (count int, reason packet.DropReason) {
	first := &b.Frames[order[0]]
	q.train.begin(first)
	begun := false // true: some segments of these frames were already sent
	for _, i := range order {
		f := &b.Frames[i]
		if count > 0 && !q.train.joins(first, f) {
			break
		}
		count++
		for s := b.Segments(f); !s.Done(); {
			if q.train.full() {
				if reason = q.writeTrain(); reason != packet.DropNone {
					return count, partly(reason, begun)
				}
				begun = true
				q.train.begin(first)
			}
			q.train.add(&s)
		}
		if q.train.total%q.train.size != 0 {
			// a segment that is shorter than the others ends the train
			break
		}
	}
	return count, partly(q.writeTrain(), begun)
}

// joins reports whether the segments of frame f can be part of the train whose first frame is firstFrame.
// They can if they have the same size and outer headers, and if all of them fit.
func (t *txTrain) joins(firstFrame, f *packet.Frame) bool {
	return f.Offload.GSO == firstFrame.Offload.GSO && f.SegmentLen() == firstFrame.SegmentLen() &&
		t.segments+f.SegmentCount() <= maxSegments && t.total+f.SegmentCount()*t.size <= maxTrain && sameOuter(firstFrame, f)
}

// partly returns the drop reason after a failed write of segments. If begun is true, some segments were
// already sent, so the worker must not send the frames again. In this case, partly returns DropTxFailed
// instead of DropTxFull.
func partly(reason packet.DropReason, begun bool) packet.DropReason {
	if reason == packet.DropTxFull && begun {
		return packet.DropTxFailed
	}
	return reason
}

func (t *txTrain) begin(f *packet.Frame) {
	t.segments, t.total, t.frame = 0, 0, f
	t.outer = int(f.OuterL4) + packet.UDPLen
	t.size = f.SegmentLen() - t.outer
}

// full reports whether the train has no room for another segment of full size.
func (t *txTrain) full() bool { return t.segments == maxSegments || t.total+t.size > maxTrain }

// add copies the next segment of a large frame to the train and finishes the segment's inner checksum.
// Only the first segment brings its outer headers: the datagrams of a train share them.
func (t *txTrain) add(s *packet.Segmenter) {
	// the outer headers of a later segment would overwrite the payload of the segment before
	n := s.Write(t.data[t.total:], t.segments == 0)
	t.total += n - t.outer
	t.segments++
}

// writeTrain sends the train with one system call. A train of one segment leaves as an ordinary frame.
func (q *txQueue) writeTrain() packet.DropReason {
	t := &q.train
	if t.segments == 0 {
		return packet.DropNone
	}
	f, header := t.frame, t.data[:t.outer]
	if t.segments > 1 {
		finishOuter(q.vnet, header, f, t.size, t.total)
	} else {
		clear(q.vnet)
		if f.Offload.Flags&packet.OffloadOuter != 0 {
			udp := packet.UDP(header[f.OuterL4:])
			udp.SetChecksum(packet.AddSums(udp.Checksum(), uint16(udp.Len())))
			finishLater(q.vnet, f)
		}
	}
	q.Vectors[0] = iovec.Vector{Base: iovec.Address(q.vnet), Len: packet.VnetLen}
	q.Vectors[1] = iovec.Vector{Base: iovec.Address(header), Len: uintptr(t.outer + t.total)}
	return q.write(q.FD, 2)
}

// finishLater sets fields of the virtio-net header vnet. They tell the kernel or the device to compute the
// outer UDP checksum of frame f.
func finishLater(vnet []byte, f *packet.Frame) {
	const needsChecksum, offset = 1, 6
	vnet[vnetFlags] = needsChecksum
	binary.LittleEndian.PutUint16(vnet[6:], f.OuterL4)
	binary.LittleEndian.PutUint16(vnet[8:], offset)
}

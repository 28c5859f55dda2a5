// SPDX-License-Identifier: Apache-2.0

package vhost_test

import (
	"encoding/binary"
	"testing"

	"weft/packet"
	"weft/port"
	"weft/vhost"
	"weft/vhost/vhosttest"
)

// If the chains of a ring have many pieces, a visit of the ring ends early. The next visits take the
// rest.
func TestChainsOfManyPiecesEndAVisit(t *testing.T) {
	const chains, pieces, tableBytes = 30, 60, 4096
	g := guest(t, vhosttest.Options{Num: 64, Features: vhost.FeatureVersion1 | vhost.FeatureIndirect, BufLen: 2 * tableBytes, Indirect: true})
	d := open(t, g, nil)
	q := g.Tx[0]
	for i := range chains {
		table, addr := q.Slot(i), q.SlotAddr(i)+tableBytes
		for k := range pieces {
			desc := table[16*k:]
			flags := uint16(vhosttest.Next)
			if k == pieces-1 {
				flags = 0
			}
			binary.LittleEndian.PutUint64(desc, addr+uint64(k))
			binary.LittleEndian.PutUint32(desc[8:], 1)
			binary.LittleEndian.PutUint16(desc[12:], flags)
			binary.LittleEndian.PutUint16(desc[14:], uint16(k+1))
		}
		q.Descs[i] = vhosttest.Desc{Addr: q.SlotAddr(i), Len: 16 * pieces, Flags: vhosttest.Indirect}
		q.Offer(uint16(i))
	}
	q.Publish()
	b, rx, total := new(packet.Batch), d.Rx()[0], 0
	for total < chains {
		b.Reset()
		n := rx.Recv(b)
		if n <= 0 || n > 11 { // 11 chains have 660 pieces, 10 have 600
			t.Fatalf("a visit took %d chains of %d pieces: %s", n, pieces, rx.Fault())
		}
		for i := range b.Frames[:n] {
			if length := b.Frames[i].Len(); length != pieces-12 {
				t.Errorf("frame of %d bytes, want %d", length, pieces-12)
			}
		}
		rx.Release()
		total += n
	}
	if total != chains {
		t.Errorf("%d frames, want %d", total, chains)
	}
}

// receiveInPieces offers n receive chains one after the other. Each has pieces descriptors, and all of
// them are in one region of memory.
func receiveInPieces(q *vhosttest.Queue, n, pieces int, pieceBytes uint32) {
	q.Withdraw()
	table := q.Slot(0)
	for k := range pieces {
		desc := table[16*k:]
		flags := uint16(vhosttest.Next | vhosttest.Write)
		if k == pieces-1 {
			flags = vhosttest.Write
		}
		binary.LittleEndian.PutUint64(desc, q.SlotAddr(1)+uint64(k)*uint64(pieceBytes))
		binary.LittleEndian.PutUint32(desc[8:], pieceBytes)
		binary.LittleEndian.PutUint16(desc[12:], flags)
		binary.LittleEndian.PutUint16(desc[14:], uint16(k+1))
	}
	for i := range n {
		q.Descs[i] = vhosttest.Desc{Addr: q.SlotAddr(0), Len: uint32(16 * pieces), Flags: vhosttest.Indirect}
		q.Offer(uint16(i))
	}
	q.Publish()
}

// sendBatch sends a batch of frames. It returns how many of them were dropped because the receiver's
// chains have too many pieces.
func sendBatch(t *testing.T, tx port.Tx, size int) (slow int) {
	t.Helper()
	b := new(packet.Batch)
	for range packet.BatchSize {
		f, header := b.Next()
		f.InPort = 1
		b.Commit(f, copy(header[:], make([]byte, size)))
	}
	if n := tx.Send(b, allOffloads); n != packet.BatchSize {
		t.Fatalf("%d frames taken", n)
	}
	for i := range b.Frames[:b.N] {
		switch b.Frames[i].Drop {
		case packet.DropSlowReceiver:
			slow++
		case packet.DropNone:
		default:
			t.Errorf("frame %d is dropped: %v", i, b.Frames[i].Drop)
		}
	}
	return slow
}

// A receiver offers chains with many small pieces. It loses the frames of a batch that exceed a limit.
// The limit starts anew with the next batch. A receiver with chains as drivers make them loses
// nothing.
func TestReceiveChainsOfManyPieces(t *testing.T) {
	for _, c := range []struct {
		name       string
		pieces     int
		pieceBytes uint32
		sent       int
	}{
		{"two bytes each", 50, 2, 14}, // excess pieces: 624 in 13 chains, 672 in 14
		{"too many for a frame", 200, 1, 0},
		{"pages, of which a small frame needs one", 19, 64, packet.BatchSize},
		{"a header and a buffer", 2, 60, packet.BatchSize},
	} {
		g := guest(t, vhosttest.Options{Num: 256, Features: vhost.FeatureVersion1 | vhost.FeatureIndirect, BufLen: 4096, Indirect: true})
		d := open(t, g, nil)
		receiveInPieces(g.Rx[0], 2*packet.BatchSize, c.pieces, c.pieceBytes)
		for range 2 {
			tx := d.Tx()[0]
			if slow := sendBatch(t, tx, 64); slow != packet.BatchSize-c.sent {
				t.Errorf("%s: %d frames of a batch are dropped, want %d", c.name, slow, packet.BatchSize-c.sent)
			}
			tx.Flush()
		}
		if used := int(g.Rx[0].UsedIndex()); used != 2*c.sent {
			t.Errorf("%s: %d chains used, want %d", c.name, used, 2*c.sent)
		}
	}
}

// A frame in many more pieces than its length needs is dropped, and its chain is given back to the
// driver. A frame with just the permitted number of pieces is not dropped.
func TestFramesOfManyPieces(t *testing.T) {
	for pieces, want := range map[int]packet.DropReason{128: packet.DropNone, 129: packet.DropManyPieces} {
		g := guest(t, vhosttest.Options{Num: 64, Features: vhost.FeatureVersion1 | vhost.FeatureIndirect, BufLen: 4096, Indirect: true})
		d := open(t, g, nil)
		q := g.Tx[0]
		table := q.Slot(0)
		for k := range pieces {
			desc := table[16*k:]
			flags := uint16(vhosttest.Next)
			if k == pieces-1 {
				flags = 0
			}
			binary.LittleEndian.PutUint64(desc, q.SlotAddr(1))
			binary.LittleEndian.PutUint32(desc[8:], 1)
			binary.LittleEndian.PutUint16(desc[12:], flags)
			binary.LittleEndian.PutUint16(desc[14:], uint16(k+1))
		}
		q.Descs[0] = vhosttest.Desc{Addr: q.SlotAddr(0), Len: uint32(16 * pieces), Flags: vhosttest.Indirect}
		q.Offer(0)
		q.Publish()
		b, rx := new(packet.Batch), d.Rx()[0]
		if n := rx.Recv(b); n != 1 || b.Frames[0].Drop != want {
			t.Errorf("%d pieces: %d frames, drop %v, want %v", pieces, n, b.Frames[0].Drop, want)
		}
		rx.Release()
		if used := q.UsedIndex(); used != 1 {
			t.Errorf("%d pieces: %d chains given back", pieces, used)
		}
	}
}

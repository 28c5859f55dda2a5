// SPDX-License-Identifier: Apache-2.0

package vhost_test

import (
	"encoding/binary"
	"testing"

	"weft/packet"
	"weft/vhost"
	"weft/vhost/vhosttest"
)

// A visit of a ring whose chains have many pieces ends early. The next visits take the rest.
func TestChainsOfManyPiecesEndAVisit(t *testing.T) {
	const chains, pieces, tableBytes = 10, 200, 4096
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
		if n <= 0 || n > 4 { // 4 chains have 800 pieces, 3 have 600
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

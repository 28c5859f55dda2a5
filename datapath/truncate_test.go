// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"bytes"
	"encoding/binary"
	"testing"

	"weft/flowtable"
	"weft/packet"
	"weft/tunnel"
)

func truncated(port uint32, limit uint64) flowtable.Action {
	return flowtable.Action{Op: flowtable.OpOutputTruncated, U32: port, U64: limit}
}

func firstBytes(frames [][]byte, n int) (list [][]byte) {
	for _, f := range frames {
		list = append(list, f[:min(n, len(f))])
	}
	return list
}

// OpOutputTruncated sends the first bytes of each segment of a large frame, with the headers and checksums
// of whole segments. Outputs before and after it send the whole frame.
func TestTruncatedLargeFrame(t *testing.T) {
	const size, n, limit = 1460, 20000, 100
	r := withOffloads(t)
	into := toTunnel(77)
	into.U64 |= limit << 32
	r.install(0, 1, 0xa, truncated(5, limit), output(5), truncated(2, limit), into, truncated(5, 1514), truncated(9, limit))
	f := large(0xa, n)
	undone, o := undo(f, size)
	r.rx(1).InjectUndone(undone, o)
	r.turn()

	segments := twinCut(f, size)
	sameFrames(t, "port 5", r.tx(5).TakeAll(), append(firstBytes(segments, limit), undone, undone))
	sameFrames(t, "port 2", r.tx(2).TakeAll(), firstBytes(segments, limit))
	const outer = 50
	var inner [][]byte
	for i, w := range r.tx(uplinkPort).TakeAll() {
		if int(binary.BigEndian.Uint16(w[16:])) != len(w)-14 || int(binary.BigEndian.Uint16(w[38:])) != len(w)-34 || packet.Sum(w[14:34]) != 0xffff {
			t.Fatalf("outer header of frame %d: % x", i, w[:outer])
		}
		inner = append(inner, w[outer:])
	}
	sameFrames(t, "uplink", inner, firstBytes(segments, limit))
	r.equal("bytes to 2", r.sh.Ports[2].TxBytes, uint64(limit*len(segments)))
	r.drops(map[packet.DropReason]uint64{packet.DropNotAttached: 1})
}

// A truncated frame has the checksum of the whole frame. The limit may end within any header.
func TestTruncatedChecksum(t *testing.T) {
	f := large(0xa, 500)
	undone, o := undo(f, 0)
	for _, limit := range []uint64{14, 20, 34, 40, 53, 54, 200, uint64(len(f) - 1), uint64(len(f)), 1 << 32} {
		r := withOffloads(t)
		into := toTunnel(77)
		into.U64 |= min(limit, 1<<32-1) << 32
		r.install(0, 1, 0xa, truncated(2, limit), into, output(2))
		r.rx(1).InjectUndone(undone, o)
		r.turn()
		short := f[:min(limit, uint64(len(f)))]
		sameFrames(t, "port 2", r.tx(2).TakeAll(), [][]byte{short, f})
		if w := r.tx(uplinkPort).TakeAll(); len(w) != 1 || !bytes.Equal(w[0][50:], short) {
			t.Errorf("limit %d: %d frames into the tunnel", limit, len(w))
		}
		r.drops(nil)
	}
}

// A frame that has waited for its tunnel's neighbour is truncated when it is sent.
func TestTruncatedFrameWaits(t *testing.T) {
	r := withTunnel(t, tunnel.TemplatePending)
	into := toTunnel(77)
	into.U64 |= 60 << 32
	r.install(0, 1, 0xa, into)
	f := large(0xa, 300)
	r.inject(1, f)
	r.turn()
	up := r.mustUpcall(UpNeighbour)
	tmpl := r.sh.Templates[1]
	tmpl.State = tunnel.TemplateReady
	r.command(AppendTemplate(nil, 1, &tmpl))
	r.command(AppendCommand(nil, CmdRetry, up.Arg, nil))
	r.turn()
	if w := r.tx(uplinkPort).TakeAll(); len(w) != 1 || !bytes.Equal(w[0][50:], f[:60]) {
		t.Errorf("%d frames into the tunnel", len(w))
	}
	r.drops(nil)
}

func TestTruncationAllocatesNothing(t *testing.T) {
	r := withOffloads(t)
	r.install(0, 1, 0xa, truncated(2, 100), output(5))
	undone, o := undo(large(0xa, 20000), 1460)
	small := large(0xa, 300)
	for _, no := range []uint32{2, 5} {
		r.tx(no).Discard.Store(true)
	}
	r.turn()
	if n := testing.AllocsPerRun(20, func() {
		r.rx(1).InjectUndone(undone, o)
		r.inject(1, small)
		r.w.pass()
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

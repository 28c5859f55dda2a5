package datapath

import (
	"testing"

	"weft/conntrack"
	"weft/flowtable"
	"weft/packet"
	"weft/port/porttest"
)

// Connections of one batch whose second megaflows differ go each by its own, and no
// further once that is gone.
func TestPairsInOneBatch(t *testing.T) {
	r := newRig(t, testSizes)
	if err := r.w.setConnections(ctTable(t)); err != nil {
		t.Fatal(err)
	}
	r.w.fixed = 1 << 50
	for no := uint32(1); no <= 3; no++ {
		r.addPort(no, porttest.Options{}, false)
	}
	const mask = conntrack.New | conntrack.Established
	for no := uint32(1); no <= 2; no++ {
		r.megaflow(no, no, 0, 0, 0, flowtable.Action{Op: flowtable.OpCT, U16: 5}, flowtable.Action{Op: flowtable.OpRecirc, U32: 9})
	}
	commit := flowtable.CTRequest{Zone: 5, Bits: flowtable.CTCommit}
	r.megaflow(10, 1, 9, mask, conntrack.New, append(commit.AppendTo(nil), output(2))...)
	r.megaflow(12, 2, 9, mask, conntrack.Established, output(1))
	for i := range uint32(2) { // by source port
		key := flowtable.Key{flowtable.WPort: 1<<32 | 9, flowtable.WL4: uint64(1000+i) << 48, flowtable.WCT: conntrack.Established << 24}
		bits := flowtable.Key{flowtable.WPort: ^uint64(0), flowtable.WL4: 0xffff << 48, flowtable.WCT: mask << 24}
		r.command(AppendInstall(nil, 20+i, &key, &bits, []flowtable.Action{output(2 + i)}))
	}
	var out, back [2][]byte
	for i := range uint16(2) {
		out[i], back[i] = udp(0x0a000001, 0x0a000002, 1000+i, 80), udp(0x0a000002, 0x0a000001, 80, 1000+i)
		r.inject(1, out[i])
		r.turn()
		r.inject(2, back[i])
		r.turn()
	}
	for range 3 { // by then fused, and the queue's frames are sought so
		r.inject(1, out[0], out[1], out[0], out[0])
		r.turn()
	}
	for no := uint32(2); no <= 3; no++ {
		r.tx(no).TakeAll()
	}
	before := r.w.fused.hits
	r.inject(1, out[0], out[0], out[1], out[0], out[1])
	r.turn()
	r.equal("frames by a hint", r.w.fused.hits-before, 5)
	for i, want := range []int{3, 2} {
		sent := r.tx(uint32(2 + i)).TakeAll()
		r.equal("sent", uint64(len(sent)), uint64(want))
		for _, f := range sent {
			if string(f) != string(out[i]) {
				t.Errorf("port %d sent %x", 2+i, f)
			}
		}
		r.equal("counted", r.sh.Cache.Flows[20+i].Packets, []uint64{12, 5}[i])
	}
	r.command(AppendCommand(nil, CmdRemove, 20, nil))
	r.inject(1, out[0], out[1])
	r.turn()
	r.mustUpcall(UpMiss)
	r.equal("sent by what is gone", uint64(len(r.tx(2).TakeAll())), 0)
	r.equal("sent by the other", uint64(len(r.tx(3).TakeAll())), 1)
	r.drops(map[packet.DropReason]uint64{})
}

// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"testing"

	"weft/flowtable"
	"weft/packet"
	"weft/port/porttest"
)

// An output port fails after the first of two complete datagrams. A new datagram
// can then use the slot of the first one, and all frames are counted.
func TestFaultWhileSendingFragments(t *testing.T) {
	panicOnFault(t)
	r := firewall(t)
	r.addPort(3, porttest.Options{}, false)
	commit := flowtable.CTRequest{Zone: 6, Bits: flowtable.CTCommit}
	r.command(AppendCommand(nil, CmdRemove, 1, nil))
	r.megaflow(6, 2, 0, 0, 0, append(commit.AppendTo(nil), output(3))...)
	quick := fragmentsOf(bigUDP(0x0a000001, 0x0a000002, 1, 2, 3000), 1000, 9)
	lost := fragmentsOf(bigUDP(0x0a000002, 0x0a000003, 3, 4, 3000), 1000, 9)
	r.tx(3).Truncate()
	r.inject(1, quick...)
	r.inject(2, lost...)
	r.turn()
	r.mustFault(3, "memory failed")
	r.equal("sent", r.sh.Ports[2].TxPackets, uint64(len(quick)))
	r.tx(2).TakeAll()

	r.inject(1, quick[:2]...) // an incomplete datagram with the same number
	r.turn()
	r.turn()
	r.equal("sent of a part", uint64(len(r.tx(2).TakeAll())), 0)
	r.equal("held", uint64(r.w.held.count), 2)
	r.inject(1, quick[2:]...)
	r.turn()
	r.equal("sent of the whole", uint64(len(r.tx(2).TakeAll())), uint64(len(quick)))
	r.equal("held", uint64(r.w.held.count), 0)
	r.equal("free slots", uint64(len(r.w.held.free)), uint64(testSizes.Held))
	r.equal("datagrams", uint64(r.w.fragments.Count), 0)
	r.equal("frames accounted for", r.total(), uint64(2*len(quick)+len(lost)))
	r.drops(map[packet.DropReason]uint64{packet.DropPortFault: uint64(len(lost))})
}

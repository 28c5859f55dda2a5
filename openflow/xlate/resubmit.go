// SPDX-License-Identifier: Apache-2.0

package xlate

import (
	"weft/flowtable"
	"weft/openflow"
	"weft/openflow/ofproto"
	"weft/packet"
)

// This file has the look-ups of resubmit with another in_port, or with the original tuple
// of the frame's connection.

// lookupAs searches a table with the in_port of a resubmit action. If the action's Tuple is set, the
// look-up sees the original tuple of the connection instead of the frame's addresses, ports and
// protocol.
func (x *xlate) lookupAs(table uint8, a *openflow.Action) *ofproto.Rule {
	const word = flowtable.WPort
	value, keep := x.flow[word], x.keep[word]
	if a.Port != openflow.PortInPort {
		x.flow[word] = value&0xffffffff | uint64(a.Port)<<32
		x.keep[word] &= 0xffffffff
	}
	if a.Tuple {
		x.swapTuple()
	}
	rule, _ := x.lookup(table)
	if a.Tuple {
		x.swapTuple()
	}
	x.flow[word], x.keep[word] = value, keep
	return rule
}

// hasTuple reports whether the frame is an IP frame of a connection.
func (x *xlate) hasTuple() bool {
	return openflow.NeedIP.Met(x) && x.read(openflow.WholeField(openflow.FCTNwProto))[1] != 0
}

// swapTuple exchanges the addresses, ports and protocol of the frame with the original tuple
// of its connection: in x.flow (the frame), in x.keep (the bits that the actions have not
// changed), and in x.wc (the mask of the megaflow). A look-up between two calls thus adds
// the fields of the tuple to the mask.
func (x *xlate) swapTuple() {
	ipv6 := x.flow.Key().EtherType() == packet.EtherTypeIPv6
	for _, f := range []*openflow.Flow{&x.flow, &x.keep, &x.wc} {
		swapBits(&f[flowtable.WIP], flowtable.ProtoShift, &f[flowtable.WCT], flowtable.CTProtoShift, 0xff)
		swapBits(&f[flowtable.WL4], 32, &f[flowtable.WCTPorts], 32, 0xffffffff)
		if !ipv6 {
			swapBits(&f[flowtable.WIPv4], 32, &f[flowtable.WCTSrc+1], 0, 0xffffffff)
			swapBits(&f[flowtable.WIPv4], 0, &f[flowtable.WCTDst+1], 0, 0xffffffff)
			continue
		}
		for i := range 2 {
			f[flowtable.WIPv6Src+i], f[flowtable.WCTSrc+i] = f[flowtable.WCTSrc+i], f[flowtable.WIPv6Src+i]
			f[flowtable.WIPv6Dst+i], f[flowtable.WCTDst+i] = f[flowtable.WCTDst+i], f[flowtable.WIPv6Dst+i]
		}
	}
}

// swapBits exchanges the bits mask<<n of *a with the bits mask<<m of *b.
func swapBits(a *uint64, n int, b *uint64, m int, mask uint64) {
	differ := (*a>>n ^ *b>>m) & mask
	*a ^= differ << n
	*b ^= differ << m
}

// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"weft/flowtable"
	"weft/packet"
)

// rewriteARPND executes an action that changes a field of ARP, neighbour discovery or ICMP, or the IPv6
// flow label. lowerHalf is the lower half of the address if the action is OpSetNDTarget.
func rewriteARPND(f *packet.Frame, a *flowtable.Action, lowerHalf uint64) {
	switch a.Op {
	case flowtable.OpSetARPOp:
		f.SetARPOp(uint16(a.U32))
	case flowtable.OpSetARPSpa:
		f.SetARPSpa(a.U32)
	case flowtable.OpSetARPTpa:
		f.SetARPTpa(a.U32)
	case flowtable.OpSetARPSha:
		f.SetARPSha(a.U64)
	case flowtable.OpSetARPTha:
		f.SetARPTha(a.U64)
	case flowtable.OpSetICMPType:
		f.SetICMPType(uint8(a.U32))
	case flowtable.OpSetICMPCode:
		f.SetICMPCode(uint8(a.U32))
	case flowtable.OpSetNDTarget:
		f.SetNDTarget(a.U64, lowerHalf)
	case flowtable.OpSetNDSll:
		f.SetNDSll(a.U64)
	case flowtable.OpSetNDTll:
		f.SetNDTll(a.U64)
	case flowtable.OpSetNDReserved:
		f.SetNDReserved(a.U32)
	case flowtable.OpSetNDOptionsType:
		f.SetNDOptionsType(uint8(a.U32))
	case flowtable.OpSetIPv6Label:
		f.SetIPv6Label(a.U32)
	}
}

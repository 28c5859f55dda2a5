// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"weft/flowtable"
	"weft/packet"
)

// rewriteNSH executes an action that sets a field of the network service header (NSH).
func rewriteNSH(f *packet.Frame, a *flowtable.Action) {
	v := packet.NSHFields(a.U32)
	switch a.Op {
	case flowtable.OpSetNSHFlags:
		f.SetNSHFields(v<<packet.NSHFlagsShift, 0xff<<packet.NSHFlagsShift)
	case flowtable.OpSetNSHTTL:
		f.SetNSHFields(v<<packet.NSHTTLShift, 0xff<<packet.NSHTTLShift)
	case flowtable.OpSetNSHSPI:
		f.SetNSHFields(v<<packet.NSHSPIShift, 0xffffff<<packet.NSHSPIShift)
	case flowtable.OpSetNSHSI:
		f.SetNSHFields(v, 0xff)
	default:
		f.SetNSHContext(int(a.Op-flowtable.OpSetNSHC1), a.U32)
	}
}

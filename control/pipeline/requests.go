// SPDX-License-Identifier: Apache-2.0

package pipeline

import (
	"weft/control/lease"
	"weft/control/underlay"
	"weft/datapath"
	"weft/flowtable"
	"weft/internal/clock"
	"weft/packet"
)

// This file has the requests of guests that this host answers itself, such as DHCP
// (xlate.Translation.Request). The control process reads such a frame from the worker's memory,
// answers it at once, and frees the memory. The limits for misses thus also apply to a guest that
// asks very often: the turns of senders and the quota of stored frames. lease.Table limits the
// answers.

// Leases returns the table of the addresses and settings that this host gives to guests, for example
// by DHCP.
func (pl *Pipeline) Leases() *lease.Table { return pl.leases }

// serve answers a guest's request, such as DHCP. The frame is in the worker's memory. serve puts
// commands for the worker into its ring, and the caller publishes them.
func (a *answers) serve(held underlay.HeldFrame, up *datapath.Upcall) {
	info, _ := a.env.PortAt(up.Key.InPort())
	var room [lease.MaxRequest]byte
	frame, length := a.w.HeldFrame(held.Worker, held.Ref, room[:0])
	answer := a.d.leases.Answer(info.Name, info.At(), frame, length, clock.Monotonic())
	a.w.Queue(held.Worker, datapath.AppendDropHeld(nil, held.Ref, packet.Consumed))
	if answer != nil {
		a.w.Queue(held.Worker, datapath.AppendInject(nil, 0, []flowtable.Action{{Op: flowtable.OpOutput, U32: info.At()}}, answer))
	}
}

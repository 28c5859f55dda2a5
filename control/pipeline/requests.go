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

// This file has the requests of guests that this host answers itself (xlate.Translation.Request).
// Control reads such a frame in its held slot, answers it at once, and frees the slot. So the
// misses' turns and the quota of held frames limit a guest that asks very often, as they limit any
// other sender of misses, and lease.Table limits the answers.

// Leases returns the table of the addresses and settings that this host tells the guests of declared
// ports.
func (pl *Pipeline) Leases() *lease.Table { return pl.leases }

// serve answers the request in a held frame. The caller publishes the commands to the worker.
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

// SPDX-License-Identifier: Apache-2.0

package statistics

import (
	"sync/atomic"

	"weft/conntrack"
	"weft/control/limits"
	"weft/datapath"
)

// fragmentRows makes the rows of "weft show limits" about fragments. It counts, for each port,
// the incomplete datagrams whose fragments the workers hold.
type fragmentRows struct {
	seen      map[datagramOf]bool
	own       map[uint32]uint64 // number of datagrams by port
	limit     uint64
	discarded uint64
}

// datagramOf identifies an incomplete datagram and the worker that holds its fragments.
type datagramOf struct {
	worker int
	number uint32
}

func newFragmentRows(workers int) *fragmentRows {
	return &fragmentRows{seen: map[datagramOf]bool{}, own: map[uint32]uint64{}, limit: uint64(workers) * conntrack.MaxDatagrams}
}

func (r *fragmentRows) add(worker int, h *datapath.HeldFrame) {
	d := datagramOf{worker, atomic.LoadUint32(&h.Track.Datagram)}
	if d.number == 0 || r.seen[d] {
		return
	}
	r.seen[d] = true
	r.own[atomic.LoadUint32(&h.InPort)]++
}

// emit emits the limit row of a port about incomplete datagrams. The limit of a port is half of the
// records that other ports do not use. discarded is the number of the port's frames that were dropped as
// bad fragments.
func (r *fragmentRows) emit(emit func(limits.Row), port uint32, discarded uint64) {
	own := r.own[port]
	r.discarded += discarded
	if own == 0 && discarded == 0 {
		return
	}
	free := r.limit - min(uint64(len(r.seen)), r.limit)
	emit(limits.Row{Name: "fragmented_datagrams", Unit: "datagrams", Holder: limits.Port(port),
		Used: own, Limit: own + (free-min(own, free)+1)/2, Refused: discarded})
}

// emitAll emits the limit row of all ports together. The caller has called emit for
// each port.
func (r *fragmentRows) emitAll(emit func(limits.Row)) {
	emit(limits.Row{Name: "fragmented_datagrams", Unit: "datagrams", Holder: limits.All(),
		Used: uint64(len(r.seen)), Limit: r.limit, Refused: r.discarded})
}

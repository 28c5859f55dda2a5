// SPDX-License-Identifier: Apache-2.0

package openflow

import (
	"fmt"
	"hash/fnv"
	"sync"

	"weft/flowtable"
	"weft/internal/share"
)

// Frozen is the state of a translation that ends at a ct action. Translation cannot
// know the result of tracking. It continues from this state when the datapath has
// tracked the frame and looks it up again. Equal states continue identically.
type Frozen struct {
	Table uint8
	// State has the metadata and the registers, which only the OpenFlow tables know.
	State [FlowWords - flowtable.KeyWords]uint64
	// Tunnel has the values of the tunnel fields that actions have set. TunnelSet is
	// the mask of these fields.
	Tunnel, TunnelSet [flowtable.TunnelWords]uint64
	// ActionSet is the text of the action set, or "" for an empty action set.
	ActionSet string
}

// Freezer is an Env that can store the state of translations and resume them.
type Freezer interface {
	// Freeze stores the state f and returns its recirc_id. The argument port is the
	// port that received the frame. If this port has used up its quota of states, ok
	// is false.
	Freeze(port uint32, f *Frozen) (id uint32, ok bool)
	// Frozen returns the state that Freeze has stored under id.
	Frozen(id uint32) (f Frozen, ok bool)
}

// MaxFrozen is the maximum number of states in a RecircTable. A sender whose frame
// fields end up in registers could create a state with every frame. Each port
// therefore has a quota (see share.Ports). When the quota is full, a ct with a table
// drops the port's frames.
const MaxFrozen = 1 << 16

// RecircTable implements Freezer. The id of a state is a hash of the state. A
// restarted control process with the same flows therefore gets the same ids.
type RecircTable struct {
	mu   sync.Mutex
	byID map[uint32]*frozenEntry
	ids  map[Frozen]uint32
	own  *share.Ports
}

type frozenEntry struct {
	frozen Frozen
	port   uint32 // port whose quota the id counts against
	used   bool   // used since the last Collect
}

// NewRecircTable returns an empty table.
func NewRecircTable() *RecircTable {
	return &RecircTable{byID: map[uint32]*frozenEntry{}, ids: map[Frozen]uint32{}, own: share.New(MaxFrozen)}
}

// Freeze implements Freezer.
func (r *RecircTable) Freeze(port uint32, f *Frozen) (uint32, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if id, ok := r.ids[*f]; ok {
		r.byID[id].used = true
		return id, true
	}
	if !r.own.MayHave(port, 1) {
		r.own.Refuse(port)
		return 0, false
	}
	r.own.Add(port, 1)
	h := fnv.New32a()
	fmt.Fprintf(h, "%#v", *f)
	id := h.Sum32()
	for id == 0 || r.byID[id] != nil {
		id++
	}
	r.byID[id], r.ids[*f] = &frozenEntry{frozen: *f, port: port, used: true}, id
	return id, true
}

// Frozen implements Freezer.
func (r *RecircTable) Frozen(id uint32) (Frozen, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	e := r.byID[id]
	if e == nil {
		return Frozen{}, false
	}
	e.used = true
	return e.frozen, true
}

// Collect removes the ids that were not used since the last Collect. It keeps ids for
// which the function needed returns true.
func (r *RecircTable) Collect(needed func(id uint32) bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for id, e := range r.byID {
		if !e.used && !needed(id) {
			delete(r.byID, id)
			delete(r.ids, e.frozen)
			r.own.Add(e.port, -1)
			continue
		}
		e.used = false
	}
}

// Shares calls the function visit for each port that has ids or was refused an id. It
// returns the number of ids in use and the number of refusals on all ports.
func (r *RecircTable) Shares(visit func(port uint32, u share.Use)) (used int, refused uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.byID), r.own.Each(visit)
}

// Len returns the number of ids in use.
func (r *RecircTable) Len() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.byID)
}

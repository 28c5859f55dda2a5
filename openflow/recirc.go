// SPDX-License-Identifier: Apache-2.0

package openflow

import (
	"fmt"
	"hash/fnv"
	"sync"

	"weft/flowtable"
	"weft/internal/share"
)

// Frozen is the state with which a translation continues after the datapath has done
// something whose result translation cannot know, such as tracking. Equal values
// continue identically.
type Frozen struct {
	Table uint8
	// State is metadata and registers, which only the tables know.
	State [FlowWords - flowtable.KeyWords]uint64
	// Tunnel has the bits of the tunnel fields that flows have set; TunnelSet is
	// their mask.
	Tunnel, TunnelSet [flowtable.TunnelWords]uint64
	// ActionSet is the text of the action set, "" if it is empty.
	ActionSet string
}

// Freezer is implemented by an Env that can resume translations.
type Freezer interface {
	// Freeze returns the recirc_id under which Frozen finds f from now on. ok is
	// false if the quota of port, which received the frame, is full.
	Freeze(port uint32, f *Frozen) (id uint32, ok bool)
	// Frozen returns the state stored under id.
	Frozen(id uint32) (f Frozen, ok bool)
}

// MaxFrozen bounds a RecircTable. Each port has a quota (see share.Ports), since a
// sender whose frames end up in registers can create an id with every frame. Beyond
// the quota, a ct with a table drops the port's frames.
const MaxFrozen = 1 << 16

// RecircTable implements Freezer. An id is a hash of its state, so that a restarted
// control process with the same flows finds the same ids.
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

// Collect removes the ids that were not used since the last Collect and are not
// needed.
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

// Shares calls visit for each port that has ids or was refused some. It returns the
// number of ids in use and the number of refusals for all ports.
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

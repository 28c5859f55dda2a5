// SPDX-License-Identifier: Apache-2.0

package xlate

import (
	"fmt"
	"hash/fnv"
	"sync"

	"weft/flowtable"
	"weft/internal/share"
	"weft/openflow"
)

// Frozen is the state of a translation that ends at a ct action, or where actions need the
// headers that a pop reveals. The translation continues from this state when the datapath
// looks up the frame again. Equal states continue identically.
type Frozen struct {
	Table uint8
	// Bridge is the number of the bridge that has the table Table. InPort is the patch port through which
	// the frame came to the bridge; 0: it arrived on a port of the bridge.
	Bridge uint8
	InPort uint32
	// Bare is true for a packet without an Ethernet header, for example after decap (encap.go).
	Bare bool
	// Queue is the queue that set_queue has chosen.
	Queue uint32
	// Mirrored is the set of mirrors to whose outputs a copy of the frame was already sent; bit i stands
	// for mirror i.
	Mirrored uint32
	// State has the metadata and the registers.
	State [openflow.StateWords]uint64
	// Tunnel has the tunnel fields that actions have set. TunnelSet is the mask of
	// these fields.
	Tunnel, TunnelSet [flowtable.TunnelWords]uint64
	// Stack has the encoded stack of push and pop, at most maxFrozenStack bytes.
	Stack string
	// TLVs has the bits of the fields tun_metadata that actions have set
	// (xlate.freezeTLVs); "": none.
	TLVs string
	// ActionSet is the text of the action set; "": empty.
	ActionSet string
	// Check says how the action normal continues after the frame was tracked, for filter rules of a port;
	// checkNone: the translation continues with Actions or in Table instead.
	Check check
	// To is the port that gets the frame after checkDelivered, by its number in the data path.
	To uint32
	// Actions is the text of the actions with which the translation continues; "": it
	// continues with a look-up in Table.
	Actions string
}

// Freezer is an optional interface of an Env, which stores the states of translations.
type Freezer interface {
	// Freeze stores the state f and returns its recirc_id. ok is false if the quota
	// of the input port is used up.
	Freeze(port uint32, f *Frozen) (id uint32, ok bool)
	// Frozen returns the state with this id.
	Frozen(id uint32) (f Frozen, ok bool)
}

// MaxFrozen is the largest number of states in a RecircTable. A sender could create a state with every
// frame, so each port has a quota (see share.Ports). When the quota is used up, a frame of the port that
// needs another state for its second look-up is dropped (Translation.Refused).
const MaxFrozen = 1 << 16

// RecircTable implements Freezer. A state's id is its hash, so a restarted control
// process with the same flows gets the same ids.
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

// NewRecircTable returns an empty table for at most MaxFrozen states.
func NewRecircTable() *RecircTable {
	return &RecircTable{byID: map[uint32]*frozenEntry{}, ids: map[Frozen]uint32{}, own: share.New(MaxFrozen)}
}

// Freeze implements Freezer. It gives equal states one id, which counts against the port that first
// needed it.
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

// Frozen implements Freezer. It marks the state as used, so that the next Collect keeps it.
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

// Collect removes the ids that were not used since the previous Collect, unless inUse
// returns true for the id.
func (r *RecircTable) Collect(inUse func(id uint32) bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for id, e := range r.byID {
		if !e.used && !inUse(id) {
			delete(r.byID, id)
			delete(r.ids, e.frozen)
			r.own.Add(e.port, -1)
			continue
		}
		e.used = false
	}
}

// Shares calls visit for each port that has ids or was refused an id. It returns the
// totals of ids and of refusals.
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

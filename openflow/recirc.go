package openflow

import (
	"fmt"
	"hash/fnv"
	"sync"

	"weft/flowtable"
	"weft/internal/share"
)

// Frozen is where the translation of a frame goes on after the datapath has done
// what translation cannot know the outcome of. Equal values go on alike.
type Frozen struct {
	Table uint8
	// State is what only the tables know: metadata and registers.
	State [FlowWords - flowtable.KeyWords]uint64
	// Tunnel are those bits of the tunnel fields that flows have set.
	Tunnel, TunnelSet [flowtable.TunnelWords]uint64
	// ActionSet is the text of the action set, "" if it is empty.
	ActionSet string
}

// Freezer is what an Env implements that can resume translations.
type Freezer interface {
	// Freeze returns the recirc_id under which f is found from now on; ok is false
	// if there is no room for a further one of the port that the frame came in on.
	Freeze(port uint32, f *Frozen) (id uint32, ok bool)
	// Frozen returns what is found under id.
	Frozen(id uint32) (f Frozen, ok bool)
}

// MaxFrozen bounds a RecircTable. Ports share it (see share.Ports): a sender whose frames
// end up in registers makes an id of each. Beyond its share a port's ct with a table
// drops.
const MaxFrozen = 1 << 16

// RecircTable implements Freezer. An id comes of what it stands for, so that a
// control process which translates the same flows finds the ids that an earlier
// one has given.
type RecircTable struct {
	mu   sync.Mutex
	byID map[uint32]*frozenEntry
	ids  map[Frozen]uint32
	own  *share.Ports
}

type frozenEntry struct {
	frozen Frozen
	port   uint32 // whose share it counts against: of the frame that made it
	used   bool   // since the last Collect
}

// NewRecircTable makes an empty table.
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

// Collect forgets what was not used since the last Collect and is not needed.
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

// Shares calls visit for each port that has ids or was refused some, and returns how
// many are in use and how often ports were refused in all.
func (r *RecircTable) Shares(visit func(port uint32, u share.Use)) (used int, refused uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.byID), r.own.Each(visit)
}

// Len is the number of ids in use.
func (r *RecircTable) Len() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.byID)
}

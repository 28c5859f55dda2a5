// SPDX-License-Identifier: Apache-2.0

package xlate

import (
	"sync"

	"weft/internal/share"
)

// tunnelOptions is an optional interface of an Env, for a switch that may have Geneve ports.
type tunnelOptions interface {
	// Geneve reports whether at least one port is of EncapGeneve. Without one, no frame has
	// options.
	Geneve() bool
	// Options returns the raw Geneve options with this hash (flowtable.WTunOpts). ok is false if the
	// options are unknown. Frames with unknown options are dropped.
	Options(hash uint64) (raw []byte, ok bool)
}

// MaxOptions is the largest number of different lists of Geneve options in an OptionTable. A sender
// could invent a new list for every frame, so each port has a quota (see share.Ports). When the quota is
// used up, frames of the port with yet another list are dropped (Translation.Refused).
const MaxOptions = 1 << 16

// OptionTable has the raw Geneve options of megaflows by their hash, because the key of a megaflow
// has only the hash. It does not outlive the control process: the next control process drops the
// megaflows that match options, and each of their flows misses once.
type OptionTable struct {
	mu     sync.Mutex
	byHash map[uint64]*optionsEntry
	own    *share.Ports
}

type optionsEntry struct {
	raw  []byte
	port uint32 // port whose quota the options count against
	used bool   // used since the last Collect
	// shared is true if the method Put has stored the same options more than once. The method Forget then
	// keeps them, because the translation of another frame may need them.
	shared bool
}

// NewOptionTable returns an empty table for at most MaxOptions lists of options.
func NewOptionTable() *OptionTable {
	return &OptionTable{byHash: map[uint64]*optionsEntry{}, own: share.New(MaxOptions)}
}

// Put stores options of a frame that arrived on port. The table keeps the slice raw. added is false
// if the table already has the options, or if the port's quota is used up.
func (t *OptionTable) Put(port uint32, hash uint64, raw []byte) (added bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if e := t.byHash[hash]; e != nil {
		e.used, e.shared = true, true
		return false
	}
	if !t.own.MayHave(port, 1) {
		t.own.Refuse(port)
		return false
	}
	t.own.Add(port, 1)
	t.byHash[hash] = &optionsEntry{raw: raw, port: port, used: true}
	return true
}

// Options implements tunnelOptions. It marks the options as used, so that the next Collect keeps
// them.
func (t *OptionTable) Options(hash uint64) ([]byte, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	e := t.byHash[hash]
	if e == nil {
		return nil, false
	}
	e.used = true
	return e.raw, true
}

// Forget removes options again, if the translation of the frame for which Put has stored them did not
// need them. It keeps options that were put several times; Collect removes these later.
func (t *OptionTable) Forget(hash uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if e := t.byHash[hash]; e != nil && !e.shared {
		t.remove(hash)
	}
}

func (t *OptionTable) remove(hash uint64) {
	if e := t.byHash[hash]; e != nil {
		delete(t.byHash, hash)
		t.own.Add(e.port, -1)
	}
}

// Collect removes the options that were not used since the previous Collect, unless inUse
// returns true for their hash.
func (t *OptionTable) Collect(inUse func(hash uint64) bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for hash, e := range t.byHash {
		if !e.used && !inUse(hash) {
			t.remove(hash)
			continue
		}
		e.used = false
	}
}

// Shares calls visit for each port that has options or was refused some. It returns the
// totals of options and of refusals.
func (t *OptionTable) Shares(visit func(port uint32, u share.Use)) (used int, refused uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.byHash), t.own.Each(visit)
}

// SPDX-License-Identifier: Apache-2.0

// Package limits gathers how much ports, zones, VNIs and clients use of every shared
// resource. The owner of a resource contributes its rows. `weft show limits`, the API
// and the metrics print the same rows.
package limits

import (
	"cmp"
	"slices"
	"strconv"
	"sync"

	"weft/api"
)

// Holder is a user of a resource.
type Holder struct {
	kind   Kind
	number uint32 // number of a port or zone
	text   string // name of a peer
}

// Kind is a kind of holder. Rows are listed in this order.
type Kind uint8

const (
	KindAll Kind = iota
	KindPort
	KindZone
	KindPeer
)

var kindNames = [...]string{"all", "port", "zone", "peer"}

// All returns the holder that stands for all holders together.
func All() Holder { return Holder{} }

// Port returns the holder for a port number.
func Port(number uint32) Holder { return Holder{kind: KindPort, number: number} }

// Zone returns the holder for a connection tracking zone.
func Zone(zone uint16) Holder { return Holder{kind: KindZone, number: uint32(zone)} }

// Peer returns the holder for a client of the API, by access.Peer.Share.
func Peer(name string) Holder { return Holder{kind: KindPeer, text: name} }

// Row is one holder's use of one resource.
type Row struct {
	// Name is the resource, in words joined by underscores, such as held_frames.
	// There is one row for each pair of name and holder.
	Name   string
	Unit   string // unit of the numbers: entries, bytes, ...
	Holder Holder
	// Used is the present use. Guarantee is the part that other holders cannot take;
	// 0: none. Limit is the most that the holder may use at the moment; 0: no limit.
	Used, Guarantee, Limit uint64
	// Refused counts refused requests for more. It never decreases.
	Refused uint64
	// Evicted counts entries of the holder that were evicted for other holders or for
	// its own newer entries. It never decreases.
	Evicted uint64
}

// Source calls emit with the present rows of one resource. It takes the locks that it
// needs, releases them before it returns, and never waits for a worker.
type Source func(emit func(Row))

// Registry has all sources. The zero value is empty.
type Registry struct {
	mu      sync.Mutex
	sources []Source
}

// Add registers a source for the life of the process.
func (r *Registry) Add(s Source) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.sources = append(r.sources, s)
}

// Rows returns the rows of all sources, sorted by resource and holder.
func (r *Registry) Rows() []Row {
	r.mu.Lock()
	sources := slices.Clone(r.sources)
	r.mu.Unlock()
	var rows []Row
	for _, s := range sources {
		s(func(row Row) { rows = append(rows, row) })
	}
	slices.SortStableFunc(rows, func(a, b Row) int {
		return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.Holder.kind, b.Holder.kind),
			cmp.Compare(a.Holder.number, b.Holder.number), cmp.Compare(a.Holder.text, b.Holder.text))
	})
	return rows
}

// Select returns the rows of holder h.
func Select(rows []Row, h Holder) []Row {
	return slices.DeleteFunc(rows, func(r Row) bool { return r.Holder != h })
}

// JSON converts rows into the API's form. portName returns the name of a port number.
func JSON(rows []Row, portName func(uint32) string) []api.Limit {
	list := make([]api.Limit, 0, len(rows))
	for _, r := range rows {
		list = append(list, api.Limit{
			Name: r.Name, Unit: r.Unit, HolderKind: kindNames[r.Holder.kind], Holder: r.Holder.name(portName),
			Used: r.Used, Guarantee: r.Guarantee, Limit: r.Limit, Refused: r.Refused, Evicted: r.Evicted,
		})
	}
	return list
}

func (h Holder) name(portName func(uint32) string) string {
	switch h.kind {
	case KindAll:
		return ""
	case KindPort:
		return portName(h.number)
	case KindPeer:
		return h.text
	}
	return strconv.FormatUint(uint64(h.number), 10)
}

// SPDX-License-Identifier: Apache-2.0

// Package limits collects the use of each shared resource by ports, zones, VNIs and API
// clients. `weft show limits`, the API and the metrics show the same rows.
package limits

import (
	"cmp"
	"slices"
	"strconv"
	"sync"

	"weft/api"
	"weft/internal/share"
)

// Holder is a user of a shared resource: a port, a connection tracking zone, an API client, or all users
// together.
type Holder struct {
	kind   Kind
	number uint32 // number of a port or zone
	text   string // name of a peer
}

// Kind says whether a Holder is all users of a resource, a port, a zone or an API client (a peer). The rows
// of a resource are sorted by Kind, in the order of the constants.
type Kind uint8

const (
	kindAll Kind = iota
	kindPort
	kindZone
	kindPeer
)

var kindNames = [...]string{"all", "port", "zone", "peer"}

// All returns the Holder that stands for all users of a resource together.
func All() Holder { return Holder{} }

// Port returns the Holder for a port number.
func Port(number uint32) Holder { return Holder{kind: kindPort, number: number} }

// Zone returns the Holder for a connection tracking zone.
func Zone(zone uint16) Holder { return Holder{kind: kindZone, number: uint32(zone)} }

// Peer returns the Holder for an API client. name is the client's access.Peer.Share.
func Peer(name string) Holder { return Holder{kind: kindPeer, text: name} }

// Row has the use and the limits of one shared resource for one Holder (a port, for example).
type Row struct {
	// Name is the resource's name, such as held_frames. There is one row for each pair
	// of Name and Holder.
	Name   string
	Unit   string // unit of Used, Guarantee and Limit: entries, bytes, ...
	Holder Holder
	// Used is the amount in use now. Guarantee is the amount reserved for the Holder.
	// Limit is the amount that the Holder may use at most now. 0 means no guarantee or
	// no limit.
	Used, Guarantee, Limit uint64
	// Refused counts requests of the Holder that were refused. It never decreases.
	Refused uint64
	// Evicted counts evicted entries of the Holder. It never decreases.
	Evicted uint64
}

// Source calls emit with each row of one or several resources. It takes and releases its own locks and
// never waits for a worker.
type Source func(emit func(Row))

// Registry has the sources of all limit rows. The zero value is ready to use.
type Registry struct {
	mu      sync.Mutex
	sources []Source
}

// Add adds a source, which cannot be removed.
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

// Select returns the rows of holder h. It changes the slice rows.
func Select(rows []Row, h Holder) []Row {
	return slices.DeleteFunc(rows, func(r Row) bool { return r.Holder != h })
}

// JSON converts rows to the API's form. portName returns the name of a port number.
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
	case kindAll:
		return ""
	case kindPort:
		return portName(h.number)
	case kindPeer:
		return h.text
	}
	return strconv.FormatUint(uint64(h.number), 10)
}

// ShareRow returns a function for share.Ports.Each. For each port, the function emits a limit row about
// the resource called name.
func ShareRow(emit func(Row), name string) func(port uint32, u share.Use) {
	return func(port uint32, u share.Use) {
		emit(Row{Name: name, Unit: "entries", Holder: Port(port), Used: uint64(u.Used),
			Guarantee: uint64(u.Guarantee), Limit: uint64(u.Limit), Refused: u.Refused})
	}
}

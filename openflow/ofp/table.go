// SPDX-License-Identifier: Apache-2.0

package ofp

import (
	"fmt"

	of "weft/openflow"
	"weft/openflow/ofproto"
)

// TableState has the properties and counters of a flow table that OpenFlow messages describe.
type TableState struct {
	ID         uint8
	Flows      uint32
	MaxEntries uint32
	Evict      bool
	Lookups    ofproto.TableLookups
}

const wild10All = 1<<22 - 1

// AppendTableStats appends the statistics of a flow table to a reply: the numbers of flows and of look-ups.
func AppendTableStats(b []byte, v Version, t *TableState) []byte {
	b = append(b, t.ID, 0, 0, 0)
	if v == v10 {
		b = text(b, fmt.Sprintf("table%d", t.ID), 32)
		b = be.AppendUint32(be.AppendUint32(b, wild10All), t.MaxEntries)
	}
	return be.AppendUint64(be.AppendUint64(be.AppendUint32(b, t.Flows), t.Lookups.All), t.Lookups.Matched)
}

// Bits of a flow table's configuration, and numbers of its properties for eviction and vacancy events.
const (
	tableMissMask = 3
	TableEviction = 1 << 2
	TableVacancy  = 1 << 3

	evictionOther    = 1
	evictImportance  = 2
	evictLifetime    = 4
	propertyEviction = 2
	propertyVacancy  = 3
)

// AppendTableDesc appends the description of a flow table (OpenFlow 1.4 and later).
func AppendTableDesc(b []byte, t *TableState) []byte {
	start, config := len(b), uint32(0)
	if t.Evict {
		config = TableEviction
	}
	b = be.AppendUint32(append(b, 0, 0, t.ID, 0), config)
	b = property(b, propertyEviction, be.AppendUint32(nil, evictionOther|evictImportance|evictLifetime))
	be.PutUint16(b[start:], uint16(len(b)-start))
	return b
}

// TableChange is a decoded table_mod. Evict says whether a full table evicts flows. If Table is of.TableAll,
// the change is for all tables.
type TableChange struct {
	Table uint8
	Evict bool
}

// DecodeTableMod decodes a table_mod, which changes the configuration of a flow table. Before OpenFlow 1.4
// there is nothing that it could change.
func DecodeTableMod(r *Request) (c TableChange, err error) {
	b := reader{b: r.Body, tlvs: r.TLVs}
	c.Table = b.u8()
	b.skip(3)
	config := b.u32()
	if err := b.err("table_mod"); err != nil {
		return c, err
	}
	known := uint32(tableMissMask)
	if r.Version >= v14 {
		known = TableEviction
	}
	switch {
	case config&TableVacancy != 0 && r.Version >= v14:
		return c, coded(of.ErrTableModBadConfig, "table_mod: weft has no vacancy events")
	case config&^known != 0 || config&tableMissMask == tableMissMask:
		return c, coded(of.ErrTableModBadConfig, "table_mod: unknown configuration %#x", config)
	case config&tableMissMask != 0:
		return c, coded(of.ErrTableModBadConfig, "table_mod: a frame that matches no flow is dropped; add a flow of priority 0")
	}
	c.Evict = config&TableEviction != 0
	for len(b.b) > 0 {
		kind, body, rest, err := of.CutProperty(b.b)
		if err != nil {
			return c, err
		}
		b.b = rest
		if kind == propertyEviction && len(body) == 4 {
			if be.Uint32(body)&^uint32(evictionOther|evictImportance|evictLifetime) != 0 {
				return c, coded(of.ErrTableModBadConfig, "table_mod: unknown eviction flags")
			}
			continue
		}
		return c, coded(of.ErrPropBadType, "table_mod: property %d: expected eviction", kind)
	}
	return c, nil
}

// Types of the properties of table features (OpenFlow 1.5, 7.3.5.18).
const (
	featureInstructions = 0
	featureNextTables   = 2
	featureWriteActions = 4
	featureApplyActions = 6
	featureMatch        = 8
	featureWildcards    = 10
	featureWriteSet     = 12
	featureApplySet     = 14
	tableNameLen        = 32
)

// AppendTableFeatures appends the features of a flow table to a reply.
func AppendTableFeatures(b []byte, v Version, t *TableState) []byte {
	start := len(b)
	b = zeros(append(b, 0, 0, t.ID, 0), 4)
	b = text(b, fmt.Sprintf("table%d", t.ID), tableNameLen)
	b = be.AppendUint64(be.AppendUint64(b, ^uint64(0)), ^uint64(0))
	config := uint32(0)
	if v >= v14 {
		config = TableEviction
	}
	b = be.AppendUint32(be.AppendUint32(b, config), t.MaxEntries)
	last := uint8(of.Tables - 1)
	var instructions []byte
	for _, kind := range []uint16{1, 2, 3, 4, 5, 6} {
		if kind == 1 && t.ID == last || kind == 6 && v >= v15 {
			continue
		}
		instructions = be.AppendUint16(be.AppendUint16(instructions, kind), 4)
	}
	var next []byte
	for n := int(t.ID) + 1; n <= int(last); n++ {
		next = append(next, byte(n))
	}
	var actions []byte
	for _, kind := range []uint16{0, 15, 16, 17, 18, 19, 20, 22, 23, 24, 25, 26, 27} {
		actions = be.AppendUint16(be.AppendUint16(actions, kind), 4)
	}
	if v >= v15 {
		actions = be.AppendUint16(be.AppendUint16(be.AppendUint16(be.AppendUint16(actions, 28), 4), 29), 4)
	}
	set := of.SetHeaders(v)
	for _, miss := range []uint16{0, 1} {
		b = property(b, featureInstructions+miss, instructions)
		b = property(b, featureNextTables+miss, next)
		b = property(b, featureWriteActions+miss, actions)
		b = property(b, featureApplyActions+miss, actions)
		b = property(b, featureWriteSet+miss, set)
		b = property(b, featureApplySet+miss, set)
	}
	b = property(b, featureMatch, of.MatchHeaders(v, true))
	b = property(b, featureWildcards, of.MatchHeaders(v, false))
	be.PutUint16(b[start:], uint16(len(b)-start))
	return b
}

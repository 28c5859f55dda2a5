// SPDX-License-Identifier: Apache-2.0

package ofp

import (
	"strings"

	of "weft/openflow"
	"weft/openflow/ofproto"
)

// Commands of a group_mod (OpenFlow 1.5, 7.3.4.3). The command add_or_mod is Open vSwitch's.
const (
	groupAdd    = 0
	groupModify = 1
	groupDelete = 2
	groupInsert = 3
	groupRemove = 5
	groupAddOr  = 0x8000
)

// Special bucket numbers in a group_mod that inserts or removes buckets: the first, the last, and all
// buckets (OpenFlow 1.5, 7.3.4.3).
const (
	BucketFirst = 0xfffffffd
	BucketLast  = 0xfffffffe
	BucketAll   = 0xffffffff
)

// GroupChange is a decoded group_mod. If the group_mod inserts or removes single buckets of a group, Insert
// or Remove is true and Command is GroupModify. Group.Buckets are then the buckets to insert.
type GroupChange struct {
	of.GroupMod
	Insert, Remove bool
	Bucket         uint32 // number of the bucket, or BucketFirst, BucketLast or BucketAll
}

var groupCommands = map[uint16]of.GroupCommand{groupAdd: of.GroupAdd, groupModify: of.GroupModify, groupDelete: of.GroupDelete,
	groupInsert: of.GroupModify, groupRemove: of.GroupModify, groupAddOr: of.GroupPut}

// modern reports whether the group message has the form of OpenFlow 1.5. Nicira uses this form for the group
// messages of OpenFlow 1.0, too.
func modern(r *Request) bool { return r.Version >= v15 || r.Version == v10 }

// DecodeGroupMod decodes a group_mod, a change of the group table.
func DecodeGroupMod(r *Request) (c GroupChange, err error) {
	b := reader{b: r.Body, tlvs: r.TLVs}
	command, kind := b.u16(), b.u8()
	b.skip(1)
	g := of.Group{ID: b.u32(), Type: of.GroupType(kind)}
	buckets, props := b.b, []byte(nil)
	if modern(r) {
		n := int(b.u16())
		b.skip(2)
		c.Bucket = b.u32()
		buckets = b.take(n)
		props = b.b
	}
	if err := b.err("group_mod"); err != nil {
		return c, err
	}
	var known bool
	if c.Command, known = groupCommands[command]; !known || !modern(r) && (command == groupInsert || command == groupRemove) {
		return c, coded(of.ErrGroupBadCommand, "group_mod: unknown command %d", command)
	}
	c.Insert, c.Remove = command == groupInsert, command == groupRemove
	if c.Command == of.GroupDelete || c.Remove {
		c.Group = g
		if g.ID == of.MaxGroup|0xfc || g.ID > of.MaxGroup {
			c.Group.ID = of.GroupAny
		}
		return c, nil
	}
	if g.Buckets, err = decodeBuckets(buckets, r, g.Type); err != nil {
		return c, err
	}
	if c.Insert {
		g.Type = of.GroupAll // buckets are inserted into an existing group, whose type this request does not know
	}
	hashed, err := decodeGroupProperties(&g, props)
	if err != nil {
		return c, err
	}
	c.Group, err = of.NewGroup(g, hashed)
	c.NoteTLVs(r.TLVs)
	return c, err
}

// decodeBuckets decodes the list of buckets of a group. kind is the type of the group.
func decodeBuckets(b []byte, r *Request, kind of.GroupType) ([]of.Bucket, error) {
	var list []of.Bucket
	for len(b) > 0 {
		if len(list) == of.MaxBuckets {
			return nil, coded(of.ErrGroupOutOfBuckets, "group_mod: expected at most %d buckets", of.MaxBuckets)
		}
		one := reader{b: b}
		n := int(one.u16())
		head := 16
		if modern(r) {
			head = 8
		}
		if n < head || n > len(b) {
			return nil, coded(of.ErrGroupBadBucket, "group_mod: a bucket has a wrong length")
		}
		one.b = b[2:n]
		b = b[n:]
		bucket, err := decodeBucket(&one, r, kind, uint32(len(list)))
		if err != nil {
			return nil, err
		}
		list = append(list, bucket)
	}
	return list, nil
}

func decodeBucket(b *reader, r *Request, kind of.GroupType, number uint32) (of.Bucket, error) {
	k := of.Bucket{ID: number, WatchPort: of.PortNone, WatchGroup: of.GroupAny}
	watch, actions := uint32(anyPort), []byte(nil)
	if kind == of.GroupSelect && modern(r) {
		k.Weight = 1
	}
	if modern(r) {
		n := int(b.u16())
		k.ID = b.u32()
		if n > len(b.b) {
			return k, coded(of.ErrGroupBadBucket, "group_mod: the actions of a bucket have a wrong length")
		}
		actions = b.take(n)
		for len(b.b) > 0 {
			prop, body, rest, err := of.CutProperty(b.b)
			if err != nil {
				return k, err
			}
			b.b = rest
			switch {
			case prop == 0 && len(body) >= 2: // the weight, with 2 bytes of padding
				k.Weight = be.Uint16(body)
			case prop == 1 && len(body) == 4:
				watch = be.Uint32(body)
			case prop == 2 && len(body) == 4:
				k.WatchGroup = be.Uint32(body)
			case prop <= 2:
				return k, coded(of.ErrPropBadLen, "group_mod: a property of a bucket has a wrong length")
			default:
				return k, coded(of.ErrPropBadType, "group_mod: unknown property %d of a bucket", prop)
			}
		}
	} else {
		k.Weight, watch, k.WatchGroup = b.u16(), b.u32(), b.u32()
		b.skip(4)
		actions = b.b
	}
	if kind != of.GroupSelect {
		k.Weight = 0
	}
	if watch != anyPort {
		var ok bool
		if k.WatchPort, ok = of.PortFromWire(watch); !ok {
			return k, coded(of.ErrGroupBadWatch, "group_mod: watch_port %d: expected a port", watch)
		}
	}
	if k.ID > of.MaxGroup {
		return k, coded(of.ErrGroupBadBucket, "group_mod: bucket %d: expected a number of at most %d", k.ID, uint32(of.MaxGroup))
	}
	var err error
	k.Actions, err = of.DecodeActions(actions, of.ActionContext{Version: r.Version, Table: of.TableAll, Bucket: true, TLVs: r.TLVs})
	return k, err
}

// Numbers of Netronome's property for the selection method of a group: the vendor, the property's number,
// and the length of the method's name in bytes.
const (
	netronome       = 0x0000154d
	selectionMethod = 1
	methodLen       = 16
)

// decodeGroupProperties decodes the properties of a group_mod. It sets the selection method of g and returns
// the fields that the group hashes.
func decodeGroupProperties(g *of.Group, b []byte) ([]of.FieldID, error) {
	var hashed []of.FieldID
	for len(b) > 0 {
		kind, body, rest, err := of.CutProperty(b)
		if err != nil {
			return nil, err
		}
		b = rest
		p := reader{b: body}
		vendor, number := p.u32(), p.u32()
		switch {
		case kind != 0xffff:
			return nil, coded(of.ErrPropBadType, "group_mod: unknown property %d", kind)
		case vendor != netronome:
			return nil, coded(of.ErrPropBadExperimenter, "group_mod: property of experimenter %#x", vendor)
		case number != selectionMethod:
			return nil, coded(of.ErrPropBadExpType, "group_mod: unknown property %d of Netronome's", number)
		}
		p.skip(4)
		method, _, _ := strings.Cut(string(p.take(methodLen)), "\x00")
		g.Param = p.u64()
		if p.short {
			return nil, coded(of.ErrPropBadLen, "group_mod: a selection method is too short")
		}
		if g.Method = method; method != "hash" && method != "dp_hash" || g.Type != of.GroupSelect || method != "hash" && len(p.b) > 0 {
			return nil, coded(of.ErrPropBadValue, "group_mod: selection method %q: expected hash or dp_hash of a select group", method)
		}
		if hashed, err = of.DecodeFieldArray(p.b); err != nil {
			return nil, err
		}
	}
	return hashed, nil
}

// DecodeGroupSelection decodes a request for information about groups. It returns a group's number, or
// of.GroupAny if the request is about all groups.
func DecodeGroupSelection(r *Request) (uint32, error) {
	if r.Kind == GroupDesc && !modern(r) {
		return of.GroupAny, nil
	}
	b := reader{b: r.Body, tlvs: r.TLVs}
	id := b.u32()
	if id > of.MaxGroup {
		id = of.GroupAny
	}
	return id, b.err("group statistics")
}

// AppendGroupDesc appends the description of one group to a reply: its type and its buckets. A message in
// the form of OpenFlow 1.5 has the selection method, too.
func AppendGroupDesc(b []byte, r *Request, g *of.Group) []byte {
	start := len(b)
	b = be.AppendUint32(append(b, 0, 0, uint8(g.Type), 0), g.ID)
	if modern(r) {
		b = zeros(b, 8)
	}
	buckets := len(b)
	for i := range g.Buckets {
		b = appendBucket(b, r, g.Type, &g.Buckets[i])
	}
	if modern(r) {
		be.PutUint16(b[start+8:], uint16(len(b)-buckets))
		if g.Method != "" {
			b = appendMethod(b, g, r.Version)
		}
	}
	be.PutUint16(b[start:], uint16(len(b)-start))
	return b
}

func appendBucket(b []byte, r *Request, kind of.GroupType, k *of.Bucket) []byte {
	start := len(b)
	watch := uint32(anyPort)
	if k.WatchPort != of.PortNone {
		watch = of.WirePort(k.WatchPort)
	}
	if !modern(r) {
		b = be.AppendUint32(be.AppendUint16(zeros(b, 2), k.Weight), watch)
		b = zeros(be.AppendUint32(b, k.WatchGroup), 4)
		b = of.AppendActions(b, k.Actions, nil, r.Version, r.TLVs)
		be.PutUint16(b[start:], uint16(len(b)-start))
		return b
	}
	b = of.AppendActions(be.AppendUint32(zeros(b, 4), k.ID), k.Actions, nil, r.Version, r.TLVs)
	be.PutUint16(b[start+2:], uint16(len(b)-start-8))
	if kind == of.GroupSelect || k.Weight != 0 {
		b = property(b, 0, append(be.AppendUint16(nil, k.Weight), 0, 0))
	}
	if watch != anyPort {
		b = property(b, 1, be.AppendUint32(nil, watch))
	}
	if k.WatchGroup != of.GroupAny {
		b = property(b, 2, be.AppendUint32(nil, k.WatchGroup))
	}
	be.PutUint16(b[start:], uint16(len(b)-start))
	return b
}

func property(b []byte, kind uint16, body []byte) []byte {
	start := len(b)
	b = be.AppendUint16(be.AppendUint16(b, kind), uint16(4+len(body)))
	return pad(append(b, body...), start)
}

func appendMethod(b []byte, g *of.Group, v Version) []byte {
	body := be.AppendUint32(be.AppendUint32(nil, netronome), selectionMethod)
	body = be.AppendUint64(text(zeros(body, 4), g.Method, methodLen), g.Param)
	return property(b, 0xffff, of.AppendFieldArray(body, g.HashedFields(), v))
}

// AppendGroupStats appends the statistics of one group to a reply. flows is the number of flows that have an
// action with this group. now is the present time of CLOCK_MONOTONIC in nanoseconds.
func AppendGroupStats(b []byte, id uint32, flows uint32, s *ofproto.GroupStats, now uint64) []byte {
	start := len(b)
	b = be.AppendUint32(be.AppendUint32(zeros(b, 4), id), flows)
	b = be.AppendUint64(be.AppendUint64(zeros(b, 4), s.Packets), s.Bytes)
	b = appendDuration(b, age(now, s.CreatedNS))
	for _, k := range s.Buckets {
		b = be.AppendUint64(be.AppendUint64(b, k.Packets), k.Bytes)
	}
	be.PutUint16(b[start:], uint16(len(b)-start))
	return b
}

// groupActions is the bitmap of the actions that a bucket may have, by their types on the wire: output, the
// VLAN actions, group, the TTL actions and set_field.
const groupActions = 1<<0 | 1<<17 | 1<<18 | 1<<22 | 1<<23 | 1<<24 | 1<<25

// AppendGroupFeatures appends the body of the reply to a group features request: capabilities, limits and
// allowed actions.
func AppendGroupFeatures(b []byte) []byte {
	b = be.AppendUint32(be.AppendUint32(b, 0xf), 1|2|4) // weights, liveness, chains
	for range 4 {
		b = be.AppendUint32(b, of.MaxGroups)
	}
	for range 4 {
		b = be.AppendUint32(b, groupActions)
	}
	return b
}

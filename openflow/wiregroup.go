// SPDX-License-Identifier: Apache-2.0

package openflow

import (
	"fmt"
	"strings"
)

// NewGroup checks a decoded group. It returns the group with the hashed fields, fieldIDs, and with the Set
// of each bucket. ParseGroupMod does the same for the text of a group. Errors are *CodedError.
func NewGroup(g Group, fieldIDs []FieldID) (Group, error) {
	var names []string
	for _, id := range fieldIDs {
		names = append(names, id.String())
	}
	g.Fields, g.hashed = strings.Join(names, ","), fieldIDs
	buckets := g.Buckets
	for i := range buckets {
		buckets[i].order()
	}
	switch {
	case g.ID > MaxGroup:
		return g, coded(ErrGroupInvalid, fmt.Sprintf("group %d: expected a number of at most %d", g.ID, uint32(MaxGroup)))
	case g.Type > GroupFailover:
		return g, coded(ErrGroupBadType, fmt.Sprintf("group %d: unknown type", g.ID))
	case len(buckets) > MaxBuckets:
		return g, coded(ErrGroupOutOfBuckets, fmt.Sprintf("group %d: expected at most %d buckets", g.ID, MaxBuckets))
	case g.Type == GroupIndirect && len(buckets) != 1:
		return g, coded(ErrGroupInvalid, fmt.Sprintf("group %d: expected one bucket in an indirect group", g.ID))
	}
	if err := g.check(); err != nil {
		code := ErrGroupBadBucket
		if g.Type == GroupFailover {
			code = ErrGroupBadWatch
		}
		return g, coded(code, err.Error())
	}
	return g, nil
}

// HashedFields returns the fields that the group hashes to select a bucket. The slice is empty if the group
// names none. The caller must not change it.
func (g *Group) HashedFields() []FieldID { return g.hashed }

// AppendFieldArray appends the fields that a group hashes, each with a mask of all bits. They are at the end
// of the property for the group's selection method.
func AppendFieldArray(b []byte, ids []FieldID, v Version) []byte {
	for _, id := range ids {
		h := wireField(id).header(v)
		if h.length == 0 {
			continue
		}
		b = AppendValue(h.append(b, false), Ones(8*uint(h.length)), h.length)
	}
	return b
}

// DecodeFieldArray decodes the fields that AppendFieldArray has encoded. Errors are *CodedError.
func DecodeFieldArray(b []byte) ([]FieldID, error) {
	var ids []FieldID
	for len(b) > 0 {
		e, rest, ok := readEntry(b)
		switch {
		case !ok || e.badLen:
			return nil, coded(ErrPropBadLen, "a group's fields end within a field")
		case e.id == FNone || e.id.IsTLV():
			return nil, coded(ErrMatchBadField, "a group's fields: expected fields that weft supports, of a fixed length")
		case len(ids) >= int(fieldCount):
			return nil, coded(ErrPropBadValue, "a group's fields: expected each field once")
		}
		ids, b = append(ids, e.id), rest
	}
	return ids, nil
}

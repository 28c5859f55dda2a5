// SPDX-License-Identifier: Apache-2.0

package ovsdb

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
)

// uuid identifies a row (RFC 7047 section 3.1).
type uuid string

// value is the value of a column (RFC 7047 section 5.1): a set of atoms, or a map of
// atoms. An atom is a string, an int64, a float64, a bool or a uuid. A column with exactly
// one atom is a set of one.
type value struct {
	atoms []any
	pairs map[any]any // nil: a set
}

// decodeValue parses the JSON of a column's value.
func decodeValue(text json.RawMessage) (value, error) {
	var raw any
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	if err := d.Decode(&raw); err != nil {
		return value{}, err
	}
	if list, tagged := raw.([]any); tagged && len(list) == 2 {
		members, listed := list[1].([]any)
		switch {
		case list[0] == "set" && listed:
			return decodeSet(members)
		case list[0] == "map" && listed:
			return decodeMap(members)
		}
	}
	a, err := decodeAtom(raw)
	return value{atoms: []any{a}}, err
}

func decodeSet(members []any) (v value, err error) {
	for _, m := range members {
		a, err := decodeAtom(m)
		if err != nil {
			return v, err
		}
		v.atoms = append(v.atoms, a)
	}
	return v, nil
}

func decodeMap(members []any) (value, error) {
	v := value{pairs: map[any]any{}}
	for _, m := range members {
		pair, ok := m.([]any)
		if !ok || len(pair) != 2 {
			return v, errors.New("a map has a pair without two members")
		}
		key, err := decodeAtom(pair[0])
		if err != nil {
			return v, err
		}
		if v.pairs[key], err = decodeAtom(pair[1]); err != nil {
			return v, err
		}
	}
	return v, nil
}

func decodeAtom(raw any) (any, error) {
	switch a := raw.(type) {
	case string, bool:
		return a, nil
	case json.Number:
		if n, err := a.Int64(); err == nil {
			return n, nil
		}
		return a.Float64()
	case []any:
		if len(a) == 2 && (a[0] == "uuid" || a[0] == "named-uuid") {
			if name, ok := a[1].(string); ok {
				return uuid(name), nil
			}
		}
	}
	return nil, fmt.Errorf("%v is no atom", raw)
}

// MarshalJSON writes the value in the notation of RFC 7047 section 5.1.
func (v value) MarshalJSON() ([]byte, error) {
	if v.pairs != nil {
		pairs := [][2]any{}
		for key, to := range v.pairs {
			pairs = append(pairs, [2]any{atomNotation(key), atomNotation(to)})
		}
		return json.Marshal([]any{"map", pairs})
	}
	atoms := []any{}
	for _, a := range v.atoms {
		atoms = append(atoms, atomNotation(a))
	}
	return json.Marshal([]any{"set", atoms})
}

func atomNotation(a any) any {
	if id, is := a.(uuid); is {
		return []string{"uuid", string(id)}
	}
	return a
}

// equal reports whether two values are equal. The order of a set's atoms does not matter.
func (v value) equal(o value) bool {
	if len(v.atoms) != len(o.atoms) || len(v.pairs) != len(o.pairs) {
		return false
	}
	for _, a := range v.atoms {
		if !slices.Contains(o.atoms, a) {
			return false
		}
	}
	for key, to := range v.pairs {
		if other, has := o.pairs[key]; !has || other != to {
			return false
		}
	}
	return true
}

// apply returns the value after the change in an update2 (ovsdb-server(7) section 4.1.14). The change of
// a set of several atoms is a symmetric difference. The change of a map has the pairs that differ. A
// column of at most one atom gets the new value.
func (v value) apply(change value, several bool) value {
	switch {
	case v.pairs != nil || change.pairs != nil:
		next := value{pairs: map[any]any{}}
		for key, to := range v.pairs {
			next.pairs[key] = to
		}
		for key, to := range change.pairs {
			if old, had := v.pairs[key]; had && old == to {
				delete(next.pairs, key)
			} else {
				next.pairs[key] = to
			}
		}
		return next
	case !several:
		return change
	}
	var next value
	for _, a := range v.atoms {
		if !slices.Contains(change.atoms, a) {
			next.atoms = append(next.atoms, a)
		}
	}
	for _, a := range change.atoms {
		if !slices.Contains(v.atoms, a) {
			next.atoms = append(next.atoms, a)
		}
	}
	return next
}

// Constructors of values for the columns that the switch writes.

func one(a any) value           { return value{atoms: []any{a}} }
func none() value               { return value{} }
func words(list []string) value { return listOf(list) }

func listOf[T any](list []T) (v value) {
	for _, a := range list {
		v.atoms = append(v.atoms, a)
	}
	return v
}

func mapOf[T any](m map[string]T) value {
	v := value{pairs: map[any]any{}}
	for key, to := range m {
		v.pairs[key] = to
	}
	return v
}

// optional returns a set with the text, or an empty set for "".
func optional(text string) value {
	if text == "" {
		return none()
	}
	return one(text)
}

// bytes estimates the memory that the value takes.
func (v value) bytes() (n int) {
	const word = 16 // bytes of an atom without its text
	size := func(atom any) int {
		switch a := atom.(type) {
		case string:
			return word + len(a)
		case uuid:
			return word + len(a)
		}
		return word
	}
	for _, a := range v.atoms {
		n += size(a)
	}
	for key, a := range v.pairs {
		n += size(key) + size(a)
	}
	return n
}

// SPDX-License-Identifier: Apache-2.0

package declare

import (
	"fmt"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"

	"weft/central/wire"
)

// Diff has the changes that a declaration file makes to a fleet.
type Diff struct {
	Changes []*wire.Change // changes for a change request
	Entries []Entry        // descriptions of the same changes for people
}

// Entry describes the change of one object.
type Entry struct {
	Op     string     `json:"op"` // add, set or delete
	Kind   string     `json:"kind"`
	Name   string     `json:"name"`
	ID     string     `json:"id"`
	Fields []FieldSet `json:"fields,omitempty"` // if Op is "set", only the fields that change, otherwise all fields of the object
}

// FieldSet is a field with its old and its new value.
type FieldSet struct {
	Key  string `json:"key"`
	From string `json:"from,omitempty"`
	To   string `json:"to,omitempty"`
}

// String returns the entry as one line. The line begins with + for a new object, -
// for a deleted object and ~ for a changed object.
func (e *Entry) String() string {
	sign := map[string]string{"add": "+", "set": "~", "delete": "-"}[e.Op]
	parts := []string{sign, e.Kind, e.Name}
	for _, f := range e.Fields {
		switch e.Op {
		case "add":
			parts = append(parts, f.Key+"="+f.To)
		case "delete":
			parts = append(parts, f.Key+"="+f.From)
		default:
			parts = append(parts, fmt.Sprintf("%s=%s -> %s", f.Key, orNone(f.From), orNone(f.To)))
		}
	}
	return strings.Join(parts, " ")
}

func orNone(text string) string {
	if text == "" {
		return "none"
	}
	return text
}

// Diff returns the changes after which the fleet has every object of the file as the
// file declares it. If prune is set, the changes also delete the objects that the
// file lacks. An entry with an id stands for the object with this id, and an entry
// without an id for the object with its name. f must be the complete declaration.
func (f *Fleet) Diff(file *File, prune bool) (*Diff, error) {
	nets, err := merge(f.Nets, file.Nets, prune, func(n *Net) (string, string) { return n.ID, n.Name },
		func(n *Net, id string) (*wire.Net, error) { return n.wire(id), nil })
	if err != nil {
		return nil, err
	}
	hosts, err := merge(f.Hosts, file.Hosts, prune, func(h *Host) (string, string) { return h.ID, h.Name },
		func(h *Host, id string) (*wire.Host, error) { return h.wire(id), nil })
	if err != nil {
		return nil, err
	}
	after := &Fleet{Nets: kindOf("net", nets.result), Hosts: kindOf("host", hosts.result)}
	ports, err := merge(f.Ports, file.Ports, prune, func(p *Port) (string, string) { return p.ID, p.Name }, after.wirePort)
	if err != nil {
		return nil, err
	}
	after.Ports = kindOf("port", ports.result)
	if err := after.checkUnique(); err != nil {
		return nil, err
	}
	d := &Diff{}
	d.add(nets.pairs("net", func(n *wire.Net, _ bool) []word { v := NetOf(n); return v.words() }))
	d.add(hosts.pairs("host", func(h *wire.Host, _ bool) []word { v := HostOf(h); return v.words() }))
	d.add(ports.pairs("port", func(p *wire.Port, old bool) []word {
		names := after
		if old {
			names = f
		}
		v := names.PortOf(p)
		return v.words()
	}))
	return d, nil
}

// wirePort converts a port of a file to a message. f has the networks and hosts as
// they are after the change.
func (f *Fleet) wirePort(p *Port, id string) (*wire.Port, error) {
	n, err := f.Nets.Find(p.Net)
	if err != nil {
		return nil, errorf("port %s: net %v", p.Name, err)
	}
	w := &wire.Port{Id: id, Name: p.Name, Net: n.GetId(), Mac: p.MAC[:], Unchecked: !p.Checked()}
	for _, h := range []struct {
		name string
		to   *string
	}{{p.Host, &w.Host}, {p.MoveTo, &w.MoveTo}} {
		if h.name == "" {
			continue
		}
		host, err := f.Hosts.Find(h.name)
		if err != nil {
			return nil, errorf("port %s: host %v", p.Name, err)
		}
		*h.to = host.GetId()
	}
	w.Addresses, err = addressBytes(p.Addresses)
	return w, err
}

// change has an object before and after the change. A new object has no old version,
// and a deleted object no new one.
type change[T Object] struct {
	old, new T
	has, get bool // has: the old version exists; get: the new version exists
}

type merged[T Object] struct {
	result  []T // all objects as they are after the changes
	changes []change[T]
}

// merge finds the existing object for each entry of a file, and computes the changes
// of one kind of objects. The function naming returns an entry's id and name. The
// function made converts an entry to an object with the given id.
func merge[T Object, E any](now Kind[T], entries []E, prune bool, naming func(*E) (id, name string), made func(*E, string) (T, error)) (*merged[T], error) {
	m := &merged[T]{}
	claimed := map[string]string{} // name of the entry for each id
	for i := range entries {
		e := &entries[i]
		id, name := naming(e)
		old, has := now.byID[id]
		if other, ok := now.byName[name]; ok && !has {
			switch {
			case id == "":
				old, has = other, true
			case !prune:
				return nil, errorf("%s %s: id %s: the present %s of this name has the id %s; leave the id out, or delete that one first", now.noun, name, id, now.noun, other.GetId())
			}
		}
		switch {
		case has:
			id = old.GetId()
		case id == "":
			id = NewID()
		}
		if first, ok := claimed[id]; ok {
			return nil, errorf("%s %s and %s are the same, of id %s; expected once", now.noun, first, name, id)
		}
		claimed[id] = name
		o, err := made(e, id)
		if err != nil {
			return nil, err
		}
		m.result = append(m.result, o)
		if !has || !same(old, o) {
			m.changes = append(m.changes, change[T]{old: old, new: o, has: has, get: true})
		}
	}
	for _, o := range now.All {
		if _, ok := claimed[o.GetId()]; ok {
			continue
		}
		if prune {
			m.changes = append(m.changes, change[T]{old: o, has: true})
		} else {
			m.result = append(m.result, o)
		}
	}
	return m, nil
}

// same reports whether two objects are equal, without regard to unknown fields and to
// the order of a port's addresses.
func same(a, b proto.Message) bool {
	plain := func(m proto.Message) proto.Message {
		c := proto.Clone(m)
		c.ProtoReflect().SetUnknown(nil)
		if p, ok := c.(*wire.Port); ok {
			sortAddresses(p.Addresses)
		}
		return c
	}
	return proto.Equal(plain(a), plain(b))
}

// pairs returns the changes of one kind of objects in the order of the objects'
// names, and a description of each change.
func (m *merged[T]) pairs(kind string, words func(o T, old bool) []word) ([]*wire.Change, []Entry) {
	name := func(c *change[T]) string {
		if c.get {
			return c.new.GetName()
		}
		return c.old.GetName()
	}
	slices.SortStableFunc(m.changes, func(a, b change[T]) int { return strings.Compare(name(&a), name(&b)) })
	var changes []*wire.Change
	var entries []Entry
	for i := range m.changes {
		c := &m.changes[i]
		e := Entry{Op: "set", Kind: kind, Name: name(c)}
		var from, to []word
		if c.has {
			from, e.ID = words(c.old, true), c.old.GetId()
		}
		if c.get {
			to, e.ID = words(c.new, false), c.new.GetId()
		}
		switch {
		case !c.has:
			e.Op = "add"
		case !c.get:
			e.Op = "delete"
		case c.old.GetName() != c.new.GetName():
			e.Fields = append(e.Fields, FieldSet{"name", c.old.GetName(), c.new.GetName()})
		}
		e.Fields = append(e.Fields, differing(from, to)...)
		entries = append(entries, e)
		if c.get {
			changes = append(changes, Set(c.new))
		} else {
			changes = append(changes, Delete(c.old))
		}
	}
	return changes, entries
}

func differing(from, to []word) (list []FieldSet) {
	value := func(words []word, key string) string {
		for _, w := range words {
			if w.key == key {
				return w.value
			}
		}
		return ""
	}
	for _, w := range to {
		if old := value(from, w.key); old != w.value {
			list = append(list, FieldSet{w.key, old, w.value})
		}
	}
	for _, w := range from {
		if value(to, w.key) == "" {
			list = append(list, FieldSet{w.key, w.value, ""})
		}
	}
	return list
}

func (d *Diff) add(changes []*wire.Change, entries []Entry) {
	d.Changes, d.Entries = append(d.Changes, changes...), append(d.Entries, entries...)
}

// Text returns the descriptions of all changes, one on each line.
func (d *Diff) Text() string {
	var b strings.Builder
	for i := range d.Entries {
		b.WriteString(d.Entries[i].String())
		b.WriteByte('\n')
	}
	return b.String()
}

// Set returns the change that creates or replaces an object.
func Set(o Object) *wire.Change {
	switch o := o.(type) {
	case *wire.Net:
		return &wire.Change{Change: &wire.Change_SetNet{SetNet: o}}
	case *wire.Host:
		return &wire.Change{Change: &wire.Change_SetHost{SetHost: o}}
	case *wire.Port:
		return &wire.Change{Change: &wire.Change_SetPort{SetPort: o}}
	}
	panic(fmt.Sprintf("declare: %T is no object", o))
}

// Delete returns the change that deletes an object.
func Delete(o Object) *wire.Change {
	switch o := o.(type) {
	case *wire.Net:
		return &wire.Change{Change: &wire.Change_DeleteNet{DeleteNet: o.Id}}
	case *wire.Host:
		return &wire.Change{Change: &wire.Change_DeleteHost{DeleteHost: o.Id}}
	case *wire.Port:
		return &wire.Change{Change: &wire.Change_DeletePort{DeletePort: o.Id}}
	}
	panic(fmt.Sprintf("declare: %T is no object", o))
}

// checkUnique returns an error if two objects have the same name, VNI, endpoint or
// address. Centrals check this too, but this error contains names and a central's
// error contains ids.
func (f *Fleet) checkUnique() error {
	owner := map[string]string{}
	claim := func(kind, what, key, name string) error {
		key = kind + " " + what + " " + key
		if first, ok := owner[key]; ok {
			return errorf("%s %s: %s belongs to %s %s too; choose another", kind, name, what, kind, first)
		}
		owner[key] = name
		return nil
	}
	for _, n := range f.Nets.All {
		if err := claim("net", "the name", n.GetName(), n.GetName()); err != nil {
			return err
		}
		if err := claim("net", fmt.Sprint("vni ", n.GetVni()), "", n.GetName()); err != nil {
			return err
		}
	}
	for _, h := range f.Hosts.All {
		if err := claim("host", "the name", h.GetName(), h.GetName()); err != nil {
			return err
		}
		v := HostOf(h)
		if err := claim("host", "endpoint "+v.Endpoint.String(), "", h.GetName()); err != nil {
			return err
		}
	}
	for _, w := range f.Ports.All {
		if err := claim("port", "the name", w.GetName(), w.GetName()); err != nil {
			return err
		}
		p := f.PortOf(w)
		if err := claim("port", "mac "+p.MAC.String(), w.GetNet(), p.Name); err != nil {
			return err
		}
		for _, a := range p.Addresses {
			if err := claim("port", "address "+a.String(), w.GetNet(), p.Name); err != nil {
				return err
			}
		}
	}
	return nil
}

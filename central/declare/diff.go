// SPDX-License-Identifier: Apache-2.0

package declare

import (
	"fmt"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"

	"weft/central/wire"
)

// Diff has the changes that turn the declaration of a fleet into that of a file, with their
// descriptions.
type Diff struct {
	Changes []*wire.Change // changes for a change request
	Entries []Entry        // the changes for people
}

// Entry describes the change of one object.
type Entry struct {
	Op   string `json:"op"` // add, set or delete
	Kind string `json:"kind"`
	Name string `json:"name"`
	ID   string `json:"id"`
	// fields of the object; if Op is "set", only the changed ones
	Fields []FieldSet `json:"fields,omitempty"`
}

// FieldSet is a field with its old and its new value.
type FieldSet struct {
	Key  string `json:"key"`
	From string `json:"from,omitempty"`
	To   string `json:"to,omitempty"`
}

// String returns the entry as one line with +, - or ~ for a new, deleted or changed
// object.
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

// Diff returns the changes that make the fleet equal to the file. If prune is set,
// objects that are not in the file are deleted. An entry of the file names its object
// by id, or by name if it has no id. f must be the complete declaration.
func (f *Fleet) Diff(file *File, prune bool) (*Diff, error) {
	nets, err := merge(f.Nets, file.Nets, prune, func(n *Net) (string, string) { return n.ID, n.Name },
		func(n *Net, id string) (*wire.Net, error) { return n.wire(id), nil })
	if err != nil {
		return nil, err
	}
	groups, err := f.mergeGroups(file, prune)
	if err != nil {
		return nil, err
	}
	hosts, err := merge(f.Hosts, file.Hosts, prune, func(h *Host) (string, string) { return h.ID, h.Name },
		func(h *Host, id string) (*wire.Host, error) { return h.wire(id), nil })
	if err != nil {
		return nil, err
	}
	after := &Fleet{Nets: kindOf("net", nets.result), Groups: kindOf("group", groups.result), Hosts: kindOf("host", hosts.result)}
	ports, err := merge(f.Ports, file.Ports, prune, func(p *Port) (string, string) { return p.ID, p.Name }, after.wirePort)
	if err != nil {
		return nil, err
	}
	after.Ports = kindOf("port", ports.result)
	if err := after.checkUnique(); err != nil {
		return nil, err
	}
	names := func(old bool) *Fleet { // the objects that an object of this state names
		if old {
			return f
		}
		return after
	}
	d := &Diff{}
	d.add(nets.pairs("net", func(n *wire.Net, _ bool) []word { v := NetOf(n); return v.words() }))
	d.add(groups.pairs("group", func(g *wire.Group, old bool) []word {
		v := names(old).GroupOf(g)
		return v.words()
	}))
	d.add(hosts.pairs("host", func(h *wire.Host, _ bool) []word { v := HostOf(h); return v.words() }))
	d.add(ports.pairs("port", func(p *wire.Port, old bool) []word {
		v := names(old).PortOf(p)
		return v.words()
	}))
	return d, nil
}

// wirePort converts a port of a file to a protobuf message. f has the networks, groups and hosts as
// they are after the change.
func (f *Fleet) wirePort(p *Port, id string) (*wire.Port, error) {
	n, err := f.Nets.Find(p.Net)
	if err != nil {
		return nil, errorf("port %s: net %v", p.Name, err)
	}
	w := &wire.Port{Id: id, Name: p.Name, Net: n.GetId(), Mac: p.MAC[:], Unchecked: !p.Checked()}
	for _, h := range []struct {
		name string
		dst  *string
	}{{p.Host, &w.Host}, {p.MoveTo, &w.MoveTo}} {
		if h.name == "" {
			continue
		}
		host, err := f.Hosts.Find(h.name)
		if err != nil {
			return nil, errorf("port %s: host %v", p.Name, err)
		}
		*h.dst = host.GetId()
	}
	if w.Groups, err = f.groupIDs(p.Groups); err != nil {
		return nil, errorf("port %s: %v", p.Name, err)
	}
	w.Addresses, err = addressBytes(p.Addresses)
	return w, err
}

// change has an object before and after the change. Either may be nil.
type change[T Object] struct {
	old, new       T
	hasOld, hasNew bool // hasOld: old exists; hasNew: new exists
}

type merged[T Object] struct {
	result  []T // all objects after the changes
	changes []change[T]
}

// merge computes the changes that turn the stored objects of one kind into those of a file. fileEntries
// has the entries of the file. naming returns the id and the name of an entry. build converts an entry
// to an object. If prune is set, objects without an entry are deleted.
func merge[T Object, E any](stored Kind[T], fileEntries []E, prune bool, naming func(*E) (id, name string), build func(*E, string) (T, error)) (*merged[T], error) {
	m := &merged[T]{}
	claimed := map[string]string{} // name of the entry for each id
	for i := range fileEntries {
		e := &fileEntries[i]
		id, name := naming(e)
		old, has := stored.byID[id]
		if other, ok := stored.byName[name]; ok && !has {
			switch {
			case id == "":
				old, has = other, true
			case !prune:
				return nil, errorf("%s %s: id %s: the present %s of this name has the id %s; leave the id out, or delete that one first", stored.noun, name, id, stored.noun, other.GetId())
			}
		}
		switch {
		case has:
			id = old.GetId()
		case id == "":
			id = NewID()
		}
		if first, ok := claimed[id]; ok {
			return nil, errorf("%s %s and %s are the same, of id %s; expected once", stored.noun, first, name, id)
		}
		claimed[id] = name
		o, err := build(e, id)
		if err != nil {
			return nil, err
		}
		m.result = append(m.result, o)
		if !has || !equivalent(old, o) {
			m.changes = append(m.changes, change[T]{old: old, new: o, hasOld: has, hasNew: true})
		}
	}
	for _, o := range stored.All {
		if _, ok := claimed[o.GetId()]; ok {
			continue
		}
		if prune {
			m.changes = append(m.changes, change[T]{old: o, hasOld: true})
		} else {
			m.result = append(m.result, o)
		}
	}
	return m, nil
}

// equivalent reports whether two objects are equal, apart from unknown fields and the order of
// addresses.
func equivalent(a, b proto.Message) bool {
	plain := func(m proto.Message) proto.Message {
		c := proto.Clone(m)
		c.ProtoReflect().SetUnknown(nil)
		if n, ok := c.(*wire.Net); ok && n.Addressing != nil {
			n.Addressing.ProtoReflect().SetUnknown(nil)
			n.Addressing = someAddressing(n.Addressing)
		}
		if p, ok := c.(*wire.Port); ok {
			sortAddresses(p.Addresses)
		}
		return c
	}
	return proto.Equal(plain(a), plain(b))
}

func (m *merged[T]) pairs(kind string, words func(o T, old bool) []word) ([]*wire.Change, []Entry) {
	name := func(c *change[T]) string {
		if c.hasNew {
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
		if c.hasOld {
			from, e.ID = words(c.old, true), c.old.GetId()
		}
		if c.hasNew {
			to, e.ID = words(c.new, false), c.new.GetId()
		}
		switch {
		case !c.hasOld:
			e.Op = "add"
		case !c.hasNew:
			e.Op = "delete"
		case c.old.GetName() != c.new.GetName():
			e.Fields = append(e.Fields, FieldSet{"name", c.old.GetName(), c.new.GetName()})
		}
		e.Fields = append(e.Fields, differing(from, to)...)
		entries = append(entries, e)
		if c.hasNew {
			changes = append(changes, Set(c.new))
		} else {
			changes = append(changes, Delete(c.old))
		}
	}
	return changes, entries
}

func differing(old, new []word) (list []FieldSet) {
	value := func(words []word, key string) string {
		for _, w := range words {
			if w.key == key {
				return w.value
			}
		}
		return ""
	}
	for _, w := range new {
		if old := value(old, w.key); old != w.value {
			list = append(list, FieldSet{w.key, old, w.value})
		}
	}
	for _, w := range old {
		if value(new, w.key) == "" {
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
	case *wire.Group:
		return &wire.Change{Change: &wire.Change_SetGroup{SetGroup: o}}
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
	case *wire.Group:
		return &wire.Change{Change: &wire.Change_DeleteGroup{DeleteGroup: o.Id}}
	case *wire.Host:
		return &wire.Change{Change: &wire.Change_DeleteHost{DeleteHost: o.Id}}
	case *wire.Port:
		return &wire.Change{Change: &wire.Change_DeletePort{DeletePort: o.Id}}
	}
	panic(fmt.Sprintf("declare: %T is no object", o))
}

// checkUnique returns an error if two objects have the same name, VNI, endpoint or
// address. A central would refuse this, too, but its error has ids in place of names.
func (f *Fleet) checkUnique() error {
	owner := map[string]string{}
	claim := func(kind, subject, key, name string) error {
		key = kind + " " + subject + " " + key
		if first, ok := owner[key]; ok {
			return errorf("%s %s: %s belongs to %s %s too; choose another", kind, name, subject, kind, first)
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
	for _, g := range f.Groups.All {
		if err := claim("group", "the name", g.GetName(), g.GetName()); err != nil {
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
	return f.checkService()
}

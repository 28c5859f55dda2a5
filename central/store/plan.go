// SPDX-License-Identifier: Apache-2.0

package store

import (
	"context"
	"fmt"
	"net"
	"strings"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"weft/central/wire"
)

// target is an object that a request sets or deletes, as it is after the request. The order of a
// request's changes does not matter. So two ports may exchange their addresses in one request.
type target struct {
	kind    string // kind as in the object's key: net, group, port or host
	id      string
	message proto.Message // nil: deleted
}

func (w *target) key() string { return Prefix + w.kind + "/" + w.id }

// collect checks each change of a request on its own, and returns the state of each changed object. If
// two changes concern the same object, the later one counts.
func collect(changes []*wire.Change) ([]*target, error) {
	if len(changes) > maxChanges {
		return nil, refusedf("the request has %d changes; send at most %d in one", len(changes), maxChanges)
	}
	var objects []*target
	known := make(map[string]*target, len(changes))
	for i, c := range changes {
		w, err := checkChange(c)
		if err != nil {
			return nil, err
		}
		if w == nil {
			return nil, refusedf("change %d of the request is empty or of a later version; upgrade weft-central", i+1)
		}
		if before := known[w.key()]; before != nil {
			*before = *w
			continue
		}
		known[w.key()] = w
		objects = append(objects, w)
	}
	return objects, nil
}

func checkChange(c *wire.Change) (*target, error) {
	switch c := c.GetChange().(type) {
	case *wire.Change_SetNet:
		return &target{"net", c.SetNet.GetId(), c.SetNet}, checkNet(c.SetNet)
	case *wire.Change_SetPort:
		return &target{"port", c.SetPort.GetId(), c.SetPort}, checkPort(c.SetPort)
	case *wire.Change_SetHost:
		return &target{"host", c.SetHost.GetId(), c.SetHost}, checkHost(c.SetHost)
	case *wire.Change_SetGroup:
		return &target{"group", c.SetGroup.GetId(), c.SetGroup}, checkGroup(c.SetGroup)
	case *wire.Change_DeleteNet:
		return &target{"net", c.DeleteNet, nil}, checkWord("the id of the network to delete", c.DeleteNet)
	case *wire.Change_DeletePort:
		return &target{"port", c.DeletePort, nil}, checkWord("the id of the port to delete", c.DeletePort)
	case *wire.Change_DeleteGroup:
		return &target{"group", c.DeleteGroup, nil}, checkWord("the id of the group to delete", c.DeleteGroup)
	case *wire.Change_DeleteHost:
		return &target{"host", c.DeleteHost, nil}, checkWord("the id of the host to delete", c.DeleteHost)
	}
	return nil, nil
}

func guards(m proto.Message) []string {
	switch m := m.(type) {
	case *wire.Net:
		keys := []string{nameGuard("net", m.Name), vniGuard(m.Vni)}
		for _, a := range m.GetAddressing().GetService() {
			keys = append(keys, ipGuard(m.Id, a))
		}
		return keys
	case *wire.Host:
		return []string{nameGuard("host", m.Name), endpointGuard(m.Endpoint)}
	case *wire.Port:
		keys := []string{nameGuard("port", m.Name), macGuard(m.Net, m.Mac)}
		for _, a := range m.Addresses {
			keys = append(keys, ipGuard(m.Net, a))
		}
		for _, h := range []string{m.Host, m.MoveTo} {
			if h != "" {
				keys = append(keys, pinGuard(h, m.Id))
			}
		}
		for _, g := range m.Groups {
			keys = append(keys, groupGuard(g, "port", m.Id))
		}
		return keys
	case *wire.Group:
		keys := []string{nameGuard("group", m.Name)}
		for _, g := range namedGroups(m) {
			keys = append(keys, groupGuard(g, "group", m.Id))
		}
		return keys
	}
	return nil
}

// namesakes returns two keys that must not exist when a port is stored. One exists if this port's id is
// the name of another port. The other exists if this port's name is the id of another port. Hosts
// report their ports by name or id, so a report would fit both ports.
func namesakes(m proto.Message) []string {
	if p, ok := m.(*wire.Port); ok && p.Id != p.Name {
		return []string{nameGuard("port", p.Id), portKey(p.Name)}
	}
	return nil
}

func references(m proto.Message) []string {
	if g, ok := m.(*wire.Group); ok {
		var keys []string
		for _, id := range namedGroups(g) {
			keys = append(keys, groupKey(id))
		}
		return keys
	}
	p, ok := m.(*wire.Port)
	if !ok {
		return nil
	}
	keys := []string{netKey(p.Net)}
	for _, g := range p.Groups {
		keys = append(keys, groupKey(g))
	}
	for _, h := range []string{p.Host, p.MoveTo} {
		if h != "" {
			keys = append(keys, hostKey(h))
		}
	}
	return keys
}

// plan adds the writes and deletions of a request to the view, and returns a *Refused if a change is
// not allowed. objects has the request's objects as they are after it. plan reads the keys on which
// they depend.
func (v *view) plan(ctx context.Context, objects []*target) error {
	stored, err := v.loadStored(ctx, objects)
	if err != nil {
		return err
	}
	var keys []string
	for _, w := range objects {
		if w.message != nil {
			keys = append(append(append(keys, guards(w.message)...), references(w.message)...), namesakes(w.message)...)
		}
	}
	if err := v.load(ctx, keys); err != nil {
		return err
	}
	for _, w := range objects {
		switch old := stored[w.key()]; {
		case old != nil:
			for _, g := range guards(old) {
				v.del(g)
			}
		case w.message == nil:
			return refuse(NotFound, "there is no %s of id %s to delete; list them", noun[w.kind], w.id)
		}
	}
	if err := v.write(objects, stored); err != nil {
		return err
	}
	if err := v.checkNamesakes(objects, stored); err != nil {
		return err
	}
	return v.checkReferences(ctx, objects)
}

// checkNamesakes returns a *Refused if the id of a port is the name of another port, or its name is the
// id of another port. It accepts a stored port that keeps its name. Earlier versions have accepted such
// names, and the port's other fields must stay editable.
func (v *view) checkNamesakes(objects []*target, stored map[string]proto.Message) error {
	for _, w := range objects {
		p, ok := w.message.(*wire.Port)
		if !ok || p.Id == p.Name {
			continue
		}
		if old, ok := stored[w.key()].(*wire.Port); ok && old.Name == p.Name {
			continue
		}
		if other, there := v.get(nameGuard("port", p.Id)); there {
			return refuse(Duplicate, "port %s: its id %s is the name of the port of id %s, and a host's port %s would belong to both; choose another id", p.Name, p.Id, other, p.Id)
		}
		if _, there := v.get(portKey(p.Name)); there {
			return refuse(Duplicate, "port %s: its name is the id of another port, and a host's port %s would belong to both; choose another name", p.Name, p.Name)
		}
	}
	return nil
}

var noun = map[string]string{"net": "network", "group": "group", "port": "port", "host": "host"}

// loadStored returns the stored versions of the objects that a request changes.
func (v *view) loadStored(ctx context.Context, objects []*target) (map[string]proto.Message, error) {
	keys := make([]string, len(objects))
	for i, w := range objects {
		keys[i] = w.key()
	}
	if err := v.load(ctx, keys); err != nil {
		return nil, err
	}
	stored := map[string]proto.Message{}
	for _, k := range keys {
		value, there := v.get(k)
		if !there {
			continue
		}
		o, _, err := decode([]byte(k), value, false, 0)
		if err != nil {
			return nil, fmt.Errorf("the store is damaged, restore it from a backup: %w", err)
		}
		stored[k] = o.Message
	}
	return stored, nil
}

func (v *view) write(objects []*target, stored map[string]proto.Message) error {
	for _, w := range objects {
		if w.message == nil {
			v.del(w.key())
			switch w.kind {
			case "port":
				v.del(bindKey(w.id))
			case "host":
				v.del(statusKey(w.id))
			}
			continue
		}
		value, err := encode(keepUnknown(w.message, stored[w.key()]))
		if err != nil {
			return refusedf("%s %s cannot be encoded: %v; send valid UTF-8", noun[w.kind], w.id, err)
		}
		v.put(w.key(), value)
		for _, g := range guards(w.message) {
			if owner, there := v.get(g); there && string(owner) != w.id {
				return duplicate(w, g, string(owner))
			}
			v.put(g, []byte(w.id))
		}
	}
	return nil
}

func duplicate(w *target, guard, owner string) error {
	rest := strings.TrimPrefix(guard, guardPrefix)
	switch m := w.message.(type) {
	case *wire.Net:
		if strings.HasPrefix(rest, "vni/") {
			return refuse(Duplicate, "network %s: vni %d belongs to %s; choose another", m.Name, m.Vni, mention{kind: "net", id: owner})
		}
		for _, a := range m.GetAddressing().GetService() {
			if ipGuard(m.Id, a) == guard {
				return refuse(Duplicate, "network %s: service address %s belongs to %s; choose another", m.Name, addressText(a), mention{kind: "port", id: owner})
			}
		}
		return refuse(Duplicate, "network %s: the name belongs to the network of id %s; choose another name or set that one", m.Name, owner)
	case *wire.Host:
		if strings.HasPrefix(rest, "endpoint/") {
			return refuse(Duplicate, "host %s: endpoint %s belongs to %s; choose another", m.Name, addressText(m.Endpoint), mention{kind: "host", id: owner})
		}
		return refuse(Duplicate, "host %s: the name belongs to the host of id %s; choose another name or set that one", m.Name, owner)
	case *wire.Group:
		return refuse(Duplicate, "group %s: the name belongs to the group of id %s; choose another name or set that one", m.Name, owner)
	case *wire.Port:
		switch {
		case strings.HasPrefix(rest, "mac/"):
			return refuse(Duplicate, "port %s: mac %s belongs to %s in %s; choose another", m.Name, net.HardwareAddr(m.Mac),
				mention{kind: "port", id: owner}, mention{kind: "net", id: m.Net})
		case strings.HasPrefix(rest, "ip/"):
			for _, a := range m.Addresses {
				if ipGuard(m.Net, a) == guard && owner == m.Net {
					return refuse(Duplicate, "port %s: address %s is the service address of %s; choose another", m.Name, addressText(a),
						mention{kind: "net", id: m.Net})
				}
				if ipGuard(m.Net, a) == guard {
					return refuse(Duplicate, "port %s: address %s belongs to %s in %s; choose another", m.Name, addressText(a),
						mention{kind: "port", id: owner}, mention{kind: "net", id: m.Net})
				}
			}
		}
		return refuse(Duplicate, "port %s: the name belongs to the port of id %s; choose another name or set that one", m.Name, owner)
	}
	return refuse(Duplicate, "%s %s: %s belongs to %s", noun[w.kind], w.id, rest, owner)
}

// checkReferences returns an error if a port or group would refer to an object that is not declared, for
// example because the request deletes this object.
func (v *view) checkReferences(ctx context.Context, objects []*target) error {
	// deleted networks, hosts and groups. The key is the prefix of the guard keys that exist while
	// another object refers to the deleted one.
	inUse := map[string]*target{}
	for _, w := range objects {
		if w.message != nil {
			for _, k := range references(w.message) {
				if _, there := v.get(k); !there {
					kind, id, _ := strings.Cut(strings.TrimPrefix(k, Prefix), "/")
					return refuse(NotFound, "%s %s: there is no %s of id %s; declare it before or in the same request", noun[w.kind], nameIn(w.message), noun[kind], id)
				}
			}
		}
		if w.message != nil || w.kind == "port" {
			continue
		}
		prefix := macGuards(w.id)
		switch w.kind {
		case "host":
			prefix = pinGuards(w.id)
		case "group":
			prefix = groupGuards(w.id)
		}
		inUse[prefix] = w
		if err := v.loadPrefix(ctx, prefix); err != nil {
			return err
		}
	}
	if len(inUse) == 0 {
		return nil
	}
	first := "" // so that the refusal names the same object each time
	for k, r := range v.records {
		if r.exists && strings.HasPrefix(k, guardPrefix) && (first == "" || k < first) && inUse[k[:strings.LastIndexByte(k, '/')+1]] != nil {
			first = k
		}
	}
	if first == "" {
		return nil
	}
	end := strings.LastIndexByte(first, '/') + 1
	w, user := inUse[first[:end]], "port"
	if strings.HasPrefix(first[end:], "group:") {
		user = "group"
	}
	return refuse(InUse, "%s cannot be deleted: %s uses it; delete or change its %ss before or in the same request",
		mention{kind: w.kind, id: w.id}, mention{kind: user, id: string(v.records[first].value)}, user)
}

// keepUnknown returns m with the unknown fields of the message "stored". A later version of Weft has
// written these fields, and a change by this version must not lose them.
func keepUnknown(m, stored proto.Message) proto.Message {
	if stored == nil {
		return m
	}
	unknown := stored.ProtoReflect().GetUnknown()
	if len(unknown) == 0 {
		return m
	}
	given := map[protowire.Number]bool{}
	for b := m.ProtoReflect().GetUnknown(); len(b) > 0; {
		number, _, n := protowire.ConsumeField(b)
		if n < 0 {
			break
		}
		given[number] = true
		b = b[n:]
	}
	merged := proto.Clone(m)
	fields := merged.ProtoReflect().GetUnknown()
	for b := unknown; len(b) > 0; {
		number, _, n := protowire.ConsumeField(b)
		if n < 0 {
			break
		}
		if !given[number] {
			fields = append(fields, b[:n]...)
		}
		b = b[n:]
	}
	merged.ProtoReflect().SetUnknown(fields)
	return merged
}

// SPDX-License-Identifier: Apache-2.0

// Package centraltest has helpers for tests of hubs and agents: a store in memory, an agent.Switch that
// only records the changes, and a second implementation that computes the state which a switch should
// have.
package centraltest

import (
	"context"
	"maps"
	"sync"

	"google.golang.org/protobuf/proto"

	"weft/central/store"
	"weft/central/wire"
)

// Memory is a hub.Store in memory, without etcd and without checks.
type Memory struct {
	mu       sync.Mutex
	revision int64
	objects  map[key]store.Object
	sinks    map[store.Sink]struct{}
	waiting  func(p *wire.Port) (host string) // nil: Put binds no port
}

type key struct {
	kind store.Kind
	id   string
}

// NewMemory returns a Memory without objects, at revision 0.
func NewMemory() *Memory {
	return &Memory{objects: map[key]store.Object{}, sinks: map[store.Sink]struct{}{}}
}

// SetWaiting sets a function that returns the host which already has a new port; "": none. Put then
// also stores the port's binding to this host, as store.Store does. SetWaiting is called before the
// first Put.
func (m *Memory) SetWaiting(waiting func(p *wire.Port) (host string)) { m.waiting = waiting }

// Put stores objects in one revision and returns the revision. An object whose Message
// is nil is deleted.
func (m *Memory) Put(objects ...store.Object) int64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.put(append(objects, m.bindWaiting(objects)...))
}

// bindWaiting returns bindings for those new ports that a host already has. The caller holds mu.
func (m *Memory) bindWaiting(objects []store.Object) (binds []store.Object) {
	if m.waiting == nil {
		return nil
	}
	for i := range objects {
		p, ok := objects[i].Message.(*wire.Port)
		if _, there := m.objects[key{store.KindPort, objects[i].ID}]; !ok || there {
			continue
		}
		if h, ok := m.objects[key{store.KindHost, m.waiting(p)}].Message.(*wire.Host); ok {
			binds = append(binds, store.Object{Kind: store.KindBind, ID: p.GetId(), Message: &wire.Bind{Port: p.GetId(), Host: h.GetId(), Endpoint: h.GetEndpoint()}})
		}
	}
	return binds
}

func (m *Memory) put(objects []store.Object) int64 {
	m.revision++
	for i := range objects {
		o := &objects[i]
		o.Revision = m.revision
		if o.Message == nil {
			delete(m.objects, key{o.Kind, o.ID})
		} else {
			m.objects[key{o.Kind, o.ID}] = *o
		}
	}
	for s := range m.sinks {
		s.Change(m.revision, objects)
	}
	return m.revision
}

// Follow implements hub.Store. It passes all objects to the sink, and then each change until ctx ends.
func (m *Memory) Follow(ctx context.Context, sink store.Sink) error {
	m.mu.Lock()
	sink.Reset(m.revision, m.list())
	m.sinks[sink] = struct{}{}
	m.mu.Unlock()
	<-ctx.Done()
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.sinks, sink)
	return ctx.Err()
}

// Reset passes all objects to every sink again, as the store does if its watch of etcd has missed
// changes.
func (m *Memory) Reset() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for s := range m.sinks {
		s.Reset(m.revision, m.list())
	}
}

func (m *Memory) list() (list []store.Object) {
	for _, o := range m.objects {
		list = append(list, o)
	}
	return list
}

// Bind implements hub.Store. It applies all requests in one revision, except those that it refuses.
func (m *Memory) Bind(_ context.Context, requests []store.BindRequest) []store.BindResult {
	m.mu.Lock()
	defer m.mu.Unlock()
	results := make([]store.BindResult, len(requests))
	var objects []store.Object
	for i := range requests {
		r := &requests[i]
		bind := m.objects[key{store.KindBind, r.Port}]
		declared, _ := m.objects[key{store.KindPort, r.Port}].Message.(*wire.Port)
		bound, _ := bind.Message.(*wire.Bind)
		switch {
		case bind.Revision != r.Expected || r.Release && bound.GetHost() != r.Host:
			results[i].Err = &store.Refused{Why: "the binding has changed"}
			continue
		case r.Release:
			objects = append(objects, store.Object{Kind: store.KindBind, ID: r.Port})
			continue
		case declared == nil:
			results[i].Err = &store.Refused{Why: "no such port"}
			continue
		}
		objects = append(objects, store.Object{Kind: store.KindBind, ID: r.Port,
			Message: &wire.Bind{Port: r.Port, Host: r.Host, Endpoint: r.Endpoint}})
		if declared.GetMoveTo() == r.Host {
			moved := proto.CloneOf(declared)
			moved.Host, moved.MoveTo = r.Host, ""
			objects = append(objects, store.Object{Kind: store.KindPort, ID: r.Port, Message: moved})
		}
	}
	if len(objects) > 0 {
		m.put(objects)
	}
	for i := range results {
		if results[i].Err == nil {
			results[i].Generation = m.revision
		}
	}
	return results
}

// PutStatus implements hub.Store. It stores nothing.
func (m *Memory) PutStatus(context.Context, []*wire.HostStatus) error { return nil }

// Revision implements hub.Store. It returns the revision of the last change.
func (m *Memory) Revision(context.Context) (int64, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.revision, nil
}

// Declaration returns all stored objects.
func (m *Memory) Declaration() *Declaration {
	m.mu.Lock()
	defer m.mu.Unlock()
	return DeclarationOf(maps.Values(m.objects))
}

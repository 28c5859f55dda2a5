// SPDX-License-Identifier: Apache-2.0

package store

import (
	"context"
	"fmt"

	"google.golang.org/protobuf/proto"

	"weft/central/wire"
)

// A host may have a port before the port is declared. If the store knows this host, the transaction
// that declares the port also binds it. Otherwise the host's hub binds the port in a second
// transaction, when it has received the declaration.

// SetWaiting sets a function that returns the host which already has the port p, before p is declared,
// or "" if it knows none. The declaration must allow the host. The result may be out of date, because
// the host's hub corrects the binding. SetWaiting must be called before the first Apply.
func (s *Store) SetWaiting(waiting func(p *wire.Port) (host string)) { s.waitingHost = waiting }

// BoundAtOnce returns the number of ports that Apply has bound in the transaction that declared them.
func (s *Store) BoundAtOnce() uint64 { return s.boundAtOnce.Load() }

// bindWaiting adds to the view the bindings of new ports that a host already has, and returns their
// number. The transaction fails if the declaration of such a host changes before it.
func (v *view) bindWaiting(ctx context.Context, objects []*target) (bound int, err error) {
	if v.store.waitingHost == nil {
		return 0, nil
	}
	hosts := map[*wire.Port]string{}
	var keys []string
	for _, w := range objects {
		p, ok := w.message.(*wire.Port)
		if !ok || v.records[w.key()].mod != 0 {
			continue
		}
		if host := v.store.waitingHost(p); host != "" {
			hosts[p] = host
			keys = append(keys, bindKey(p.Id), hostKey(host))
		}
	}
	if err := v.load(ctx, keys); err != nil {
		return 0, err
	}
	for p, id := range hosts {
		stored, there := v.get(hostKey(id))
		if _, before := v.get(bindKey(p.Id)); before || !there {
			continue
		}
		var host wire.Host
		if err := proto.Unmarshal(stored, &host); err != nil {
			return 0, fmt.Errorf("%s is damaged: %w", hostKey(id), err)
		}
		value, err := encode(&wire.Bind{Port: p.Id, Host: id, Endpoint: host.Endpoint})
		if err != nil {
			return 0, err
		}
		v.put(bindKey(p.Id), value)
		bound++
	}
	return bound, nil
}

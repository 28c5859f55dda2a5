// SPDX-License-Identifier: Apache-2.0

package store

import (
	"bytes"
	"context"
	"fmt"
	"slices"

	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/protobuf/proto"

	"weft/central/wire"
)

// bindOps is an upper limit of the comparisons of one binding in a transaction, and of its operations.
// A binding compares the keys of port, host and binding. It writes two keys, port and binding, and
// deletes one. The transaction itself needs one more of each.
const bindOps = 4

// Bind stores on which hosts ports are, many of them in one transaction. The results are in the order
// of the requests. A generation is the revision that wrote the binding; an unchanged binding keeps it.
// Bind repeats temporary failures until ctx ends. It is then unknown which requests have taken effect.
func (s *Store) Bind(ctx context.Context, requests []BindRequest) []BindResult {
	results := make([]BindResult, len(requests))
	pending := make([]int, len(requests)) // indexes of requests without a result
	for i := range pending {
		pending[i] = i
	}
	for len(pending) > 0 {
		// a second request for the same port must see the effect of the first
		var group, later []int
		ports := map[string]bool{}
		for _, i := range pending {
			if ports[requests[i].Port] || len(group) >= max(1, s.ops/bindOps-1) {
				later = append(later, i)
			} else {
				ports[requests[i].Port] = true
				group = append(group, i)
			}
		}
		s.bindGroup(ctx, requests, results, group)
		pending = later
	}
	return results
}

// bindGroup binds different ports in one transaction. If the transaction conflicts with
// another change, bindGroup divides the group, so that one port cannot delay all
// others.
func (s *Store) bindGroup(ctx context.Context, requests []BindRequest, results []BindResult, group []int) {
	for n := 0; ; n++ {
		local := s.local && n == 0
		err := s.bindOnce(ctx, requests, results, &group, local, n)
		if len(group) == 0 {
			return
		}
		if local && (err == nil || err == errConflict) {
			continue // the local reads may have been old
		}
		if err != errConflict && !temporary(err) || pause(ctx, n) != nil {
			for _, i := range group {
				results[i].Err = fmt.Errorf("port %s: it is not known whether it is bound, ask again: %w", requests[i].Port, explain(err))
			}
			return
		}
		if err == errConflict && len(group) > 1 {
			half := len(group) / 2
			s.bindGroup(ctx, requests, results, group[:half])
			group = group[half:]
		}
	}
}

// bindOnce executes requests in one transaction. group has their indexes, and bindOnce removes the
// requests that have a result. If "local" is set, the store reads from the etcd member in this process,
// whose data may be old. A request then has a result only if its binding was written. n is the number
// of earlier attempts.
func (s *Store) bindOnce(ctx context.Context, requests []BindRequest, results []BindResult, group *[]int, local bool, n int) error {
	keys := make([]string, 0, bindOps*len(*group))
	for _, i := range *group {
		r := &requests[i]
		keys = append(keys, portKey(r.Port), hostKey(r.Host), bindKey(r.Port))
	}
	keys = append(keys, writerKey)
	slices.Sort(keys)
	v := s.newView(local)
	if err := v.load(ctx, slices.Compact(keys)); err != nil {
		return err
	}
	t := v.bindTransaction(requests, results, *group, local)
	*group = append(t.writing[:len(t.writing):len(t.writing)], t.unsure...)
	if len(t.writing) == 0 {
		return nil
	}
	if t.moves { // a binding that completes a move changes the declaration
		if v.records[writerKey].exists {
			if err := s.awaitWriter(ctx); err != nil {
				return err
			}
			return errConflict
		}
		t.ifs = append(t.ifs, clientv3.Compare(clientv3.ModRevision(writerKey), "=", 0))
		t.ops = append(t.ops, clientv3.OpPut(intentKey, "move"))
	}
	r, err := s.commit(ctx, s.patience(n), t.ifs, t.ops)
	if err != nil {
		return err // the next attempt reads the outcome
	}
	if !r.Succeeded {
		return errConflict
	}
	for _, i := range t.writing {
		results[i] = BindResult{Generation: r.Header.Revision}
	}
	*group = t.unsure
	return nil
}

// bindTransaction is one transaction that writes and deletes bindings.
type bindTransaction struct {
	ifs     []clientv3.Cmp
	ops     []clientv3.Op
	writing []int // indexes of the requests that the transaction binds
	unsure  []int // indexes of the requests whose result needs reads that the whole cluster confirms
	moves   bool  // a binding completes a move
}

// bindTransaction makes the transaction for the requests whose indexes are in group. If a request is
// refused or needs no write, it stores the result at once. If "local" is set, the data may be old, so
// such a request is put into t.unsure instead.
func (v *view) bindTransaction(requests []BindRequest, results []BindResult, group []int, local bool) (t bindTransaction) {
	hosts := map[string]bool{}
	for _, i := range group {
		r := &requests[i]
		value, generation, err := v.checkBind(r)
		if local && value == nil {
			t.unsure = append(t.unsure, i)
			continue
		}
		if err != nil || value == nil {
			results[i] = BindResult{generation, err}
			continue
		}
		t.moves = t.moves || len(value) > 1
		t.writing = append(t.writing, i)
		for _, key := range []string{portKey(r.Port), bindKey(r.Port)} {
			t.ifs = append(t.ifs, clientv3.Compare(clientv3.ModRevision(key), "=", v.records[key].mod))
		}
		if !hosts[r.Host] {
			hosts[r.Host] = true
			t.ifs = append(t.ifs, clientv3.Compare(clientv3.CreateRevision(hostKey(r.Host)), ">", 0))
		}
		t.ops = append(t.ops, value...)
	}
	return t
}

// checkBind returns the operations that store a binding, or a *Refused if it is not allowed. If the
// same binding is stored already, there are no operations, and generation is that of the stored
// binding.
func (v *view) checkBind(r *BindRequest) (ops []clientv3.Op, generation int64, err error) {
	if r.Release {
		return v.checkRelease(r)
	}
	if reason := wrongAddress(r.Endpoint); reason != "" {
		return nil, 0, refusedf("port %s: endpoint: %s", r.Port, reason)
	}
	stored, there := v.get(portKey(r.Port))
	if !there {
		return nil, 0, refuse(NotFound, "port %s: there is no port of this id; declare it first", r.Port)
	}
	var port wire.Port
	if err := proto.Unmarshal(stored, &port); err != nil {
		return nil, 0, fmt.Errorf("%s is damaged: %w", portKey(r.Port), err)
	}
	if _, there := v.get(hostKey(r.Host)); !there {
		return nil, 0, refuse(NotFound, "port %s: there is no host of id %s; declare it first", port.Name, r.Host)
	}
	if port.Host != "" && r.Host != port.Host && r.Host != port.MoveTo {
		return nil, 0, refuse(InUse, "port %s is restricted to host %s; host %s may not bind it until its host or move_to says so", port.Name, port.Host, r.Host)
	}
	bound := &wire.Bind{}
	key := bindKey(r.Port)
	stored, there = v.get(key)
	if there {
		if err := proto.Unmarshal(stored, bound); err != nil {
			return nil, 0, fmt.Errorf("%s is damaged: %w", key, err)
		}
		if bound.Host == r.Host && bytes.Equal(bound.Endpoint, r.Endpoint) {
			return nil, v.records[key].mod, nil
		}
	}
	if r.Expected != v.records[key].mod {
		return nil, 0, refuse(Changed, "port %s has generation %d on host %s, not %d; look again", port.Name, v.records[key].mod, bound.Host, r.Expected)
	}
	b := proto.Clone(bound).(*wire.Bind) // keeps fields of later versions
	b.Port, b.Host, b.Endpoint = r.Port, r.Host, r.Endpoint
	value, err := encode(b)
	if err != nil {
		return nil, 0, err
	}
	ops = append(ops, clientv3.OpPut(key, string(value)))
	if r.Host == port.MoveTo {
		if port.Host != r.Host {
			ops = append(ops, clientv3.OpDelete(pinGuard(port.Host, r.Port)))
		}
		port.Host, port.MoveTo = r.Host, ""
		if value, err = encode(&port); err != nil {
			return nil, 0, err
		}
		ops = append(ops, clientv3.OpPut(portKey(r.Port), string(value)))
	}
	return ops, 0, nil
}

// checkRelease returns the operation that deletes a port's binding. If the port is not bound to the
// request's host, it returns no operation.
func (v *view) checkRelease(r *BindRequest) (ops []clientv3.Op, generation int64, err error) {
	key := bindKey(r.Port)
	stored, there := v.get(key)
	if !there {
		return nil, 0, nil
	}
	var bound wire.Bind
	if err := proto.Unmarshal(stored, &bound); err != nil {
		return nil, 0, fmt.Errorf("%s is damaged: %w", key, err)
	}
	if bound.Host != r.Host {
		return nil, v.records[key].mod, nil
	}
	if r.Expected != v.records[key].mod {
		return nil, 0, refuse(Changed, "port %s has generation %d on host %s, not %d; look again", r.Port, v.records[key].mod, bound.Host, r.Expected)
	}
	return []clientv3.Op{clientv3.OpDelete(key)}, 0, nil
}

// PutStatus stores hosts' status, many in one transaction. It repeats temporary
// failures until ctx ends.
func (s *Store) PutStatus(ctx context.Context, status []*wire.HostStatus) error {
	latest := map[string]*wire.HostStatus{} // a transaction writes a key only once
	var hosts []string
	for _, h := range status {
		if err := checkWord("the host of a status", h.GetHost()); err != nil {
			return err
		}
		if latest[h.Host] == nil {
			hosts = append(hosts, h.Host)
		}
		latest[h.Host] = h
	}
	for batch := range slices.Chunk(hosts, s.ops) {
		ops := make([]clientv3.Op, len(batch))
		for i, host := range batch {
			value, err := encode(latest[host])
			if err != nil {
				return refusedf("status of host %s: %v", host, err)
			}
			ops[i] = clientv3.OpPut(statusKey(host), string(value))
		}
		if _, err := s.read(ctx, ops); err != nil {
			return err
		}
	}
	return nil
}

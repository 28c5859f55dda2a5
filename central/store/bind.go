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

// bindOps is an upper bound for the part of one binding in a transaction, in
// comparisons and in operations. A binding needs three comparisons (port, host and
// binding) and up to three operations (it writes the port and the binding, and
// deletes a guard). All bindings of a transaction together need one more comparison
// and one more operation.
const bindOps = 4

// Bind binds ports to hosts. One transaction binds many ports. The results are in the
// order of the requests. If a port is already bound to the host as requested, it
// keeps its generation. Bind repeats requests that have failed temporarily, until ctx
// ends. It is then not known whether their ports are bound.
func (s *Store) Bind(ctx context.Context, requests []BindRequest) []BindResult {
	results := make([]BindResult, len(requests))
	pending := make([]int, len(requests)) // indexes in requests of the requests without a result
	for i := range pending {
		pending[i] = i
	}
	for len(pending) > 0 {
		// Two requests for the same port go into two transactions, so that the second
		// request sees the effect of the first.
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

// bindGroup executes requests for different ports. After a conflict, it divides the
// group into halves. A port that changes all the time thus does not delay all other
// ports.
func (s *Store) bindGroup(ctx context.Context, requests []BindRequest, results []BindResult, group []int) {
	for n := 0; ; n++ {
		err := s.bindOnce(ctx, requests, results, &group)
		if len(group) == 0 {
			return
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

// bindOnce reads the state of the group's ports. It sets the results of requests that
// need no write, and executes the other requests in one transaction. Afterwards the
// group contains only the requests without a result.
func (s *Store) bindOnce(ctx context.Context, requests []BindRequest, results []BindResult, group *[]int) error {
	keys := make([]string, 0, bindOps*len(*group))
	for _, i := range *group {
		r := &requests[i]
		keys = append(keys, portKey(r.Port), hostKey(r.Host), bindKey(r.Port))
	}
	keys = append(keys, writerKey)
	slices.Sort(keys)
	v := s.newView()
	if err := v.load(ctx, slices.Compact(keys)); err != nil {
		return err
	}
	var ifs []clientv3.Cmp
	var then []clientv3.Op
	var writing []int
	hosts := map[string]bool{}
	moves := 0
	for _, i := range *group {
		r := &requests[i]
		value, generation, err := v.checkBind(r)
		if err != nil || value == nil {
			results[i] = BindResult{generation, err}
			continue
		}
		if len(value) > 1 {
			moves++
		}
		writing = append(writing, i)
		for _, key := range []string{portKey(r.Port), bindKey(r.Port)} {
			ifs = append(ifs, clientv3.Compare(clientv3.ModRevision(key), "=", v.records[key].mod))
		}
		if !hosts[r.Host] {
			hosts[r.Host] = true
			ifs = append(ifs, clientv3.Compare(clientv3.CreateRevision(hostKey(r.Host)), ">", 0))
		}
		then = append(then, value...)
	}
	*group = writing
	if len(writing) == 0 {
		return nil
	}
	if moves > 0 { // a completed move changes the declaration, so the rules of Apply hold
		if v.records[writerKey].there {
			if err := s.awaitWriter(ctx); err != nil {
				return err
			}
			return errConflict
		}
		ifs = append(ifs, clientv3.Compare(clientv3.ModRevision(writerKey), "=", 0))
		then = append(then, clientv3.OpPut(intentKey, "move"))
	}
	r, err := s.commit(ctx, attemptTimeout, ifs, then)
	if err != nil {
		return err // the next attempt finds out whether the transaction took effect
	}
	if !r.Succeeded {
		return errConflict
	}
	for _, i := range writing {
		results[i] = BindResult{Generation: r.Header.Revision}
	}
	*group = nil
	return nil
}

// checkBind returns the operations that bind the port. If the port is already bound
// as requested, it returns no operations and the generation of the binding.
func (v *view) checkBind(r *BindRequest) (then []clientv3.Op, generation int64, err error) {
	if r.Release {
		return v.checkRelease(r)
	}
	if why := wrongAddress(r.Endpoint); why != "" {
		return nil, 0, refusedf("port %s: endpoint: %s", r.Port, why)
	}
	stored, there := v.get(portKey(r.Port))
	if !there {
		return nil, 0, refusedf("port %s: there is no port of this id; declare it first", r.Port)
	}
	var port wire.Port
	if err := proto.Unmarshal(stored, &port); err != nil {
		return nil, 0, fmt.Errorf("%s is damaged: %w", portKey(r.Port), err)
	}
	if _, there := v.get(hostKey(r.Host)); !there {
		return nil, 0, refusedf("port %s: there is no host of id %s; declare it first", port.Name, r.Host)
	}
	if port.Host != "" && r.Host != port.Host && r.Host != port.MoveTo {
		return nil, 0, refusedf("port %s is restricted to host %s; host %s may not bind it until its host or move_to says so", port.Name, port.Host, r.Host)
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
		return nil, 0, refusedf("port %s has generation %d on host %s, not %d; look again", port.Name, v.records[key].mod, bound.Host, r.Expected)
	}
	b := proto.Clone(bound).(*wire.Bind) // a copy keeps fields that a later version has stored
	b.Port, b.Host, b.Endpoint = r.Port, r.Host, r.Endpoint
	value, err := encode(b)
	if err != nil {
		return nil, 0, err
	}
	then = append(then, clientv3.OpPut(key, string(value)))
	if r.Host == port.MoveTo {
		if port.Host != r.Host {
			then = append(then, clientv3.OpDelete(pinGuard(port.Host, r.Port)))
		}
		port.Host, port.MoveTo = r.Host, ""
		if value, err = encode(&port); err != nil {
			return nil, 0, err
		}
		then = append(then, clientv3.OpPut(portKey(r.Port), string(value)))
	}
	return then, 0, nil
}

// checkRelease returns the operation that removes a binding. If the port is no longer
// bound to the host, checkRelease returns no operation.
func (v *view) checkRelease(r *BindRequest) (then []clientv3.Op, generation int64, err error) {
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
		return nil, 0, refusedf("port %s has generation %d on host %s, not %d; look again", r.Port, v.records[key].mod, bound.Host, r.Expected)
	}
	return []clientv3.Op{clientv3.OpDelete(key)}, 0, nil
}

// PutStatus stores the status that hosts have reported. One transaction stores many
// of them. PutStatus repeats a transaction that has failed temporarily, until ctx
// ends.
func (s *Store) PutStatus(ctx context.Context, status []*wire.HostStatus) error {
	latest := map[string]*wire.HostStatus{} // a transaction may write a key only once, so the last status of each host counts
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

// SPDX-License-Identifier: Apache-2.0

package admin

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"

	"weft/central/store"
	"weft/central/wire"
)

// Why implements wire.AdminServer. It explains whether a port is reachable. It reads the port, its
// network, hosts and binding from etcd, so that it sees the newest changes. It asks the hub which hosts
// need the port's addresses.
func (s *Service) Why(ctx context.Context, r *wire.WhyRequest) (*wire.WhyReply, error) {
	id, err := s.Store.Find(ctx, store.KindPort, r.GetPort())
	if err != nil {
		return nil, failure(err)
	}
	w := &investigation{service: s, ctx: ctx}
	if id != "" {
		w.read(store.KindPort, id, &w.port)
	}
	if w.err != nil {
		return nil, failure(w.err)
	}
	if w.port.Id == "" {
		return nil, failure(&store.Refused{Why: fmt.Sprintf("there is no declared port %s; list the ports", r.GetPort()), Reason: store.NotFound})
	}
	w.reply.Port = &w.port
	w.hosts = s.connected(ctx)
	w.explain()
	return &w.reply, failure(w.err)
}

// An investigation finds out whether a port is reachable, and what is missing if it is
// not.
type investigation struct {
	service *Service
	ctx     context.Context
	port    wire.Port
	hosts   map[string]hostState // connected ones, by id
	reply   wire.WhyReply
	err     error
}

// read reads an object from the store into message. If there is no such object, the
// message stays empty. It returns the object's revision. After an earlier error, read
// does nothing.
func (w *investigation) read(kind store.Kind, id string, message proto.Message) (revision int64) {
	if w.err != nil {
		return 0
	}
	var o []store.Object
	if o, w.err = w.service.Store.Get(w.ctx, kind, id); len(o) > 0 {
		proto.Merge(message, o[0].Message)
		return o[0].Revision
	}
	return 0
}

// host returns the declared host with this id, or nil.
func (w *investigation) host(id string) *wire.Host {
	h := &wire.Host{}
	if id == "" || w.read(store.KindHost, id, h) == 0 {
		return nil
	}
	return h
}

func (w *investigation) explain() {
	p := w.reply.Port
	w.reply.Net = &wire.Net{}
	w.read(store.KindNet, p.Net, w.reply.Net)
	bind := &wire.Bind{}
	bound := &wire.BoundPort{Bind: bind, Generation: w.read(store.KindBind, p.Id, bind)}
	host := w.host(bind.Host)
	if host == nil {
		where := "a switch"
		if h := w.host(p.Host); h != nil {
			where = "host " + h.Name
		}
		w.reply.Missing = append(w.reply.Missing, fmt.Sprintf("no host has the port: add a port named %s, or with id=%s, to %s", p.Name, p.Id, where))
		return
	}
	w.reply.Bind, w.reply.BoundOn = bound, host.Name
	w.reply.Alive = w.hosts[host.Id].central != ""
	if !w.reply.Alive {
		w.reply.Missing = append(w.reply.Missing, fmt.Sprintf("host %s, which has the port, is connected to no central", host.Name))
	}
	// Any host with a bound port in the network may send to this port. So the reply says for each
	// whether it has applied the revision that bound the port.
	need := w.service.Hub.HostsOf(p.Net)
	need[host.Id] = host.Name
	var late []string
	for id, name := range need {
		h := &wire.HostRevision{Host: name, Applied: w.hosts[id].applied, Current: w.hosts[id].applied >= bound.Generation}
		w.reply.Programmed = append(w.reply.Programmed, h)
		if !h.Current && id != host.Id {
			late = append(late, h.Host)
		}
	}
	slices.SortFunc(w.reply.Programmed, func(a, b *wire.HostRevision) int { return cmp.Compare(a.Host, b.Host) })
	if len(late) > 0 {
		slices.Sort(late)
		w.reply.Missing = append(w.reply.Missing, fmt.Sprintf("these hosts have not applied revision %d: %s", bound.Generation, strings.Join(late, ", ")))
	}
	w.explainTrouble(need)
}

// troubledMost limits the hosts whose reported errors are in one reply.
const troubledMost = 5

// explainTrouble adds to the reply the errors that hosts with ports in the network have reported. names
// has the names of these hosts by id. If the network is on one host only, errors do not matter, because
// the host needs no tunnel.
func (w *investigation) explainTrouble(names map[string]string) {
	if len(names) < 2 {
		return
	}
	var troubled []string
	for id, name := range names {
		if trouble := w.hosts[id].trouble; trouble != "" {
			troubled = append(troubled, fmt.Sprintf("host %s: %s", name, trouble))
		}
	}
	slices.Sort(troubled)
	if n := len(troubled) - troubledMost; n > 0 {
		troubled = append(troubled[:troubledMost], fmt.Sprintf("%d more hosts have trouble: weft host list", n))
	}
	w.reply.Missing = append(w.reply.Missing, troubled...)
}

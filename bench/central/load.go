// SPDX-License-Identifier: Apache-2.0

package central

import (
	"context"
	"fmt"
	"os"
	"slices"
	"time"

	"weft/central/wire"
	"weft/e2e/lab"
)

// load declares all ports, and measures how long it takes until every host has the expected state. The
// time starts when the hosts begin to connect.
func (r *run) load() {
	ctx, cancel := r.step()
	defer cancel()
	f := r.fleet
	began := clock()
	first := &wire.ChangeRequest{Id: "hosts"}
	for _, n := range f.model.nets {
		first.Changes = append(first.Changes, &wire.Change{Change: &wire.Change_SetNet{SetNet: n}})
	}
	for _, h := range f.model.hosts {
		first.Changes = append(first.Changes, &wire.Change{Change: &wire.Change_SetHost{SetHost: h}})
	}
	r.revision = lab.Must(r.cluster.apply(ctx, first, time.Minute))
	r.seconds("networks and hosts written", clock()-began)
	ports := append(f.model.fill(r.Ports, r.random), f.site.ports()...)
	r.oldMemory, _ = MemoryOf(os.Getpid())
	cpu, driver := r.cluster.cpu(), CPUOf(os.Getpid())
	connecting := clock()
	f.start()
	at, err := await(ctx, "agents connect", func() bool { return f.connected() == r.hostCount() })
	if err != nil {
		lab.Check(fmt.Errorf("%w (%d of %d)", err, f.connected(), r.hostCount()))
	}
	r.seconds("all hosts connected", at-connecting)
	began = clock()
	lab.Check(r.declare(ctx, ports))
	r.seconds("ports written", clock()-began)
	last := f.asExpected(ctx)
	r.seconds("every host as expected", last-connecting)
	r.seconds("CPU time of the centrals", f.countedCentrals-cpu)
	r.seconds("CPU time of the simulated hosts", f.countedDriver-driver)
	r.memory()
	r.consistent(ctx)
}

func (r *run) declare(ctx context.Context, ports []*placed) (err error) {
	size := r.Batch
	if size == 0 {
		size = len(ports)
	}
	for file := range slices.Chunk(ports, size) {
		request := &wire.ChangeRequest{Id: "file-" + file[0].Id}
		for _, p := range file {
			request.Changes = append(request.Changes, &wire.Change{Change: &wire.Change_SetPort{SetPort: p.Port}})
		}
		if r.revision, err = r.cluster.apply(ctx, request, time.Minute); err != nil {
			return err
		}
	}
	return nil
}

func (r *run) memory() {
	var largest int64
	for i := range r.cluster.nodes {
		_, most := MemoryOf(r.cluster.nodes[i].process.Process.Pid)
		largest = max(largest, most)
	}
	r.add("highest resident memory of a central", float64(largest), "B")
	now, _ := MemoryOf(os.Getpid())
	r.add("resident memory of a simulated host", float64(now-r.oldMemory)/float64(r.Hosts), "B")
	if r.fleet.site != nil {
		r.add("agent's share of weftd", r.fleet.site.memory(), "B")
	}
	bytes := r.fleet.received()
	r.add("received by a host, median", Quantile(bytes, 0.5), "B")
	r.add("received by a host, most", Quantile(bytes, 1), "B")
}

// consistent compares the objects in etcd with the model. It fails if an acknowledged write is missing,
// or if a port is bound to the wrong host.
func (r *run) consistent(ctx context.Context) {
	objects := lab.Must(r.cluster.stored(ctx))
	ports, bound := map[string]bool{}, map[string]string{}
	for _, o := range objects {
		switch m := o.Message.(type) {
		case *wire.Port:
			ports[o.ID] = true
		case *wire.Bind:
			bound[o.ID] = m.Host
		}
	}
	m := r.fleet.model
	for id, p := range m.ports {
		if !ports[id] {
			lab.Check(fmt.Errorf("port %s was acknowledged and is lost", id))
		}
		if want := m.hosts[p.host].Id; bound[id] != want {
			lab.Check(fmt.Errorf("port %s is bound to %q, expected %s", id, bound[id], want))
		}
	}
	for id := range ports {
		if m.ports[id] == nil {
			lab.Check(fmt.Errorf("port %s was deleted and is stored", id))
		}
	}
	for id := range bound {
		if m.ports[id] == nil {
			lab.Check(fmt.Errorf("port %s was deleted and is bound", id))
		}
	}
	r.fleet.watcher.mu.Lock()
	defer r.fleet.watcher.mu.Unlock()
	if w := r.fleet.watcher.wrong; len(w) > 0 {
		lab.Check(fmt.Errorf("%d violations: %s", len(w), w[0]))
	}
}

// sync measures how long "weft sync --wait=hosts" takes after a change of one port.
func (r *run) sync() {
	ctx, cancel := r.step()
	defer cancel()
	var times []time.Duration
	for n := range 20 {
		net := r.fleet.model.nets[n%len(r.fleet.model.nets)]
		p := r.fleet.model.port(net, 0)
		for _, change := range []*wire.Change{{Change: &wire.Change_SetPort{SetPort: p.Port}}, {Change: &wire.Change_DeletePort{DeletePort: p.Id}}} {
			revision := lab.Must(r.cluster.apply(ctx, &wire.ChangeRequest{Changes: []*wire.Change{change}}, time.Minute))
			began := clock()
			if hosts := r.cluster.sync(ctx, revision); hosts != r.hostCount() {
				lab.Check(fmt.Errorf("sync has %d of %d hosts", hosts, r.hostCount()))
			}
			times = append(times, clock()-began)
			r.revision = revision
		}
	}
	slices.Sort(times)
	r.seconds("sync, median", Quantile(times, 0.5))
	r.seconds("sync, longest", Quantile(times, 1))
}

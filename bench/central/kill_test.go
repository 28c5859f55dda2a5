// SPDX-License-Identifier: Apache-2.0

package central

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"weft/central/wire"
	"weft/e2e/lab"
)

// TestMain runs the tests. The test binary is also the program of the central processes.
func TestMain(m *testing.M) {
	if file := os.Getenv(ConfigVariable); file != "" {
		fmt.Fprintln(os.Stderr, Serve(file))
		os.Exit(1)
	}
	os.Exit(m.Run())
}

func testOptions(t *testing.T) Options {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return Options{Self: []string{self}, IP: "127.0.0.1", Hosts: 20, Ports: 300, Topology: "recorded", Batch: 100, Rate: 20, Life: 3 * time.Second,
		Length: 5 * time.Second, Dir: t.TempDir(), AgentFiles: true, Seed: uint64(time.Now().UnixNano()), Limit: 20 * time.Second, Log: t.Logf}
}

// Centrals and agents are killed. Every host still reaches the expected state. No acknowledged write
// is lost, and no two hosts have the same port in the same generation.
func TestKillsLoseNothing(t *testing.T) {
	o := testOptions(t)
	t.Log("seed", o.Seed)
	var r *run
	if err := lab.Attempt(func() { r = start(t.Context(), o) }); err != nil {
		t.Fatal(err)
	}
	defer r.end()
	if err := lab.Attempt(r.load); err != nil {
		t.Fatal(err)
	}
	length := 20 * time.Second
	if testing.Short() {
		length = 5 * time.Second
	}
	ctx, cancel := context.WithTimeout(t.Context(), length)
	defer cancel()
	c := r.newChurn(time.Second)
	var done sync.WaitGroup
	done.Go(func() { c.run(ctx) })
	done.Go(func() { r.wander(ctx, rand.New(rand.NewPCG(o.Seed, 2))) })
	done.Go(func() { r.rebootAgents(ctx, t, rand.New(rand.NewPCG(o.Seed, 3))) })
	r.harm(ctx, t, rand.New(rand.NewPCG(o.Seed, 4)))
	done.Wait()
	if err := lab.Attempt(func() { r.settle(c) }); err != nil {
		for i := range r.cluster.nodes {
			s, err := r.cluster.status(t.Context(), i)
			t.Log(i, s, err)
		}
		r.misplaced(t)
		t.Fatal(err)
	}
	writes := c.latencies()
	t.Logf("%d writes, the longest %s, %d attempts failed", len(writes), Quantile(writes, 1), r.cluster.retries.Load())
}

func (r *run) misplaced(t *testing.T) {
	objects, err := r.cluster.stored(t.Context())
	if err != nil {
		t.Log(err)
	}
	bound := map[string]*wire.Bind{}
	for _, o := range objects {
		if b, ok := o.Message.(*wire.Bind); ok {
			bound[o.ID] = b
		}
	}
	shown := 0
	for id, p := range r.fleet.model.ports {
		h := r.fleet.hosts[p.host]
		if want := r.fleet.model.hosts[p.host].Id; bound[id].GetHost() != want && shown < 10 {
			shown++
			t.Logf("port %s is bound to %q, expected %s, whose switch has %v and whose agent is %+v", id, bound[id].GetHost(), want, h.recorder().Ports(), h.agent().Stats())
		}
	}
}

func (r *run) harm(ctx context.Context, t *testing.T, random *rand.Rand) {
	pause := func(limit time.Duration) {
		select {
		case <-ctx.Done():
		case <-time.After(time.Duration(random.Int64N(int64(limit)))):
		}
	}
	for ctx.Err() == nil {
		pause(2 * time.Second)
		victims := random.Perm(members)[:1+random.IntN(2)]
		if random.IntN(2) == 0 {
			t.Log("SIGSTOP", victims)
			for _, i := range victims {
				r.cluster.signal(i, syscall.SIGSTOP)
			}
			pause(3 * time.Second)
			for _, i := range victims {
				r.cluster.signal(i, syscall.SIGCONT)
			}
			continue
		}
		t.Log("SIGKILL", victims)
		for _, i := range victims {
			r.cluster.end(i)
		}
		pause(2 * time.Second)
		for _, i := range victims {
			if err := lab.Attempt(func() { r.cluster.start(i) }); err != nil {
				t.Error(err)
			}
		}
	}
}

func (r *run) wander(ctx context.Context, random *rand.Rand) {
	f := r.fleet
	f.mu.Lock()
	var all []*placed
	for _, p := range f.model.ports {
		// port 1 does not move, because churn pings it
		if n := p.key.MAC & 0xffff; n > 1 && int(n) <= r.Ports {
			all = append(all, p)
		}
	}
	f.mu.Unlock()
	slices.SortFunc(all, func(a, b *placed) int { return int(a.key.MAC) - int(b.key.MAC) })
	for ctx.Err() == nil {
		p := all[random.IntN(len(all))]
		f.mu.Lock()
		old := f.hosts[p.host]
		if f.model.remove(p) {
			f.watcher.leaves(p.Net, old)
		}
		p.host = random.IntN(len(f.hosts))
		f.model.add(p)
		h := f.hosts[p.host]
		if f.model.inNet[p.Net][p.host] == 1 {
			f.watcher.joins(p.Net, h)
		}
		f.mu.Unlock()
		old.unplug(p.Name)
		h.plug(p.Name)
		select {
		case <-ctx.Done():
		case <-time.After(time.Duration(random.IntN(100)) * time.Millisecond):
		}
	}
}

func (r *run) rebootAgents(ctx context.Context, t *testing.T, random *rand.Rand) {
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case <-time.After(time.Duration(random.IntN(1000)) * time.Millisecond):
		}
		h := r.fleet.hosts[random.IntN(len(r.fleet.hosts))]
		h.mu.Lock()
		h.stop()
		if err := lab.Attempt(h.start); err != nil {
			t.Error(err)
		}
		h.mu.Unlock()
	}
}

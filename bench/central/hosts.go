// SPDX-License-Identifier: Apache-2.0

package central

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/credentials"

	"weft/central/centraltest"
	"weft/central/pki"
	"weft/control/agent"
	"weft/e2e/lab"
)

// fleet has all simulated and real hosts, and a model of the state that their switches should reach.
type fleet struct {
	ca       *authority
	centrals []string // addresses of the centrals' gRPC servers
	dir      string   // directory of the agents' state files; if empty, agents save nothing
	hosts    []*host

	mu    sync.Mutex // guards model
	model *model

	watcher watcher
	site    *site // real hosts; nil: none

	cluster *cluster
	// countedCentrals and countedDriver are the CPU times of the weft-central servers and of this
	// process. asExpected reads them before it begins to compare the hosts with the model, so they do
	// not include the comparison.
	countedCentrals, countedDriver time.Duration
}

// host is a simulated host. It runs weftd's agent, which is a client of weft-central. In place of a
// switch, it has a recorder, which stores what the agent changes.
type host struct {
	n      int
	fleet  *fleet
	config agent.Config
	run    atomic.Pointer[hostRun]
	stop   func()
	// lastChange is the time at which the agent last changed something in the recorder.
	lastChange atomic.Int64

	mu    sync.Mutex // guards the fields below
	added uint64
	local []agent.LocalPort
}

// hostRun has the parts of a host that exist only while it runs.
type hostRun struct {
	agent    *agent.Agent
	recorder *centraltest.Recorder

	mu sync.Mutex
	// unknown counts, for each address, how often the agent has answered that no host has the address.
	unknown map[centraltest.AddressKey]int
}

func (h *host) agent() *agent.Agent { return h.run.Load().agent }

func (h *host) recorder() *centraltest.Recorder { return h.run.Load().recorder }

func newFleet(m *model, c *cluster, dir string) *fleet {
	f := &fleet{ca: c.ca, dir: dir, model: m, cluster: c}
	for i := range c.nodes {
		f.centrals = append(f.centrals, c.nodes[i].address)
	}
	f.watcher.pending, f.watcher.owners = map[centraltest.AddressKey]*awaited{}, map[generationKey]int{}
	for n := range m.simulated {
		f.hosts = append(f.hosts, &host{n: n, fleet: f})
	}
	return f
}

func (f *fleet) start() {
	f.mu.Lock()
	for _, h := range f.hosts {
		h.local = f.model.local(h.n)
	}
	f.mu.Unlock()
	for n, h := range f.hosts {
		config := f.ca.client(hostName(n), pki.Host)
		h.config = agent.Config{Centrals: rotated(f.centrals, n), Credentials: credentials.NewTLS(config),
			Version: "bench", Log: slog.New(slog.DiscardHandler)}
		if f.dir != "" {
			h.config.File = filepath.Join(f.dir, hostName(n))
		}
	}
	for _, h := range f.hosts {
		h.start()
	}
}

func rotated(list []string, n int) []string {
	n %= len(list)
	return append(slices.Clone(list[n:]), list[:n]...)
}

func (h *host) start() {
	r := &hostRun{recorder: centraltest.NewRecorder(h.local...), unknown: map[centraltest.AddressKey]int{}}
	h.lastChange.Store(int64(clock()))
	r.recorder.OnApply(func(c *agent.Changes) {
		h.lastChange.Store(int64(clock()))
		h.fleet.watcher.applied(h, c)
		if len(c.Unknown) > 0 {
			r.mu.Lock()
			defer r.mu.Unlock()
			for _, u := range c.Unknown {
				r.unknown[centraltest.AddressKey{VNI: u.VNI, MAC: u.MAC}]++
			}
		}
	})
	r.agent = agent.New(h.config, r.recorder)
	h.run.Store(r)
	lab.Check(r.agent.Restore())
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		r.agent.Run(ctx)
	}()
	h.stop = func() {
		cancel()
		<-ended
	}
}

func (f *fleet) halt() {
	var done sync.WaitGroup
	for _, h := range f.hosts {
		if h.stop != nil {
			done.Go(h.stop)
		}
	}
	done.Wait()
}

func (h *host) plug(name string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.added++
	h.local = append(slices.Clone(h.local), agent.LocalPort{Name: name, Up: true, Added: h.added})
	h.recorder().SetPorts(h.local...)
	h.agent().PortsChanged()
}

func (h *host) unplug(name string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.local = slices.DeleteFunc(slices.Clone(h.local), func(l agent.LocalPort) bool { return l.Name == name })
	h.recorder().SetPorts(h.local...)
	h.agent().PortsChanged()
}

func (f *fleet) connected() (n int) {
	for _, h := range f.hosts {
		if h.agent().Stats().Connected {
			n++
		}
	}
	if n < len(f.hosts) {
		return n // asked seldom: each question takes CPU time from the simulated hosts
	}
	return n + f.site.connected()
}

func await(ctx context.Context, name string, check func() bool) (time.Duration, error) {
	for !check() {
		if ctx.Err() != nil {
			return 0, fmt.Errorf("%s: %w", name, context.Cause(ctx))
		}
		time.Sleep(10 * time.Millisecond)
	}
	return clock(), nil
}

// comparePause is the pause between two comparisons of all hosts with the model. Without it,
// comparisons would take CPU time from the agents.
const comparePause = 200 * time.Millisecond

// asExpected waits until every switch has the expected state. It returns the time at which the last
// switch changed. The model must not change meanwhile.
func (f *fleet) asExpected(ctx context.Context) (latest time.Duration) {
	lab.Must(await(ctx, "hosts get their addresses", f.counted))
	f.countedCentrals, f.countedDriver = f.cluster.cpu(), CPUOf(os.Getpid())
	// compared has one value for each host: host.lastChange at the comparison that found no
	// difference, or -1 before.
	compared := make([]int64, len(f.hosts))
	for n := range compared {
		compared[n] = -1
	}
	for {
		different, example := 0, ""
		for n, h := range f.hosts {
			at := h.lastChange.Load()
			if at == compared[n] {
				continue
			}
			if difference := f.difference(h); difference != "" {
				different++
				example = fmt.Sprintf("%s: %s", hostName(n), difference)
			} else {
				compared[n] = at
			}
		}
		if different == 0 {
			if difference := f.site.difference(f); difference != "" {
				different, example = different+1, difference
			}
		}
		if different == 0 && !slices.ContainsFunc(f.hosts, func(h *host) bool { return h.lastChange.Load() != compared[h.n] }) {
			return time.Duration(slices.Max(compared))
		}
		if ctx.Err() != nil {
			lab.Check(fmt.Errorf("%d of %d hosts are not as expected: %s: %w", different, len(f.hosts), example, context.Cause(ctx)))
		}
		time.Sleep(comparePause)
	}
}

// counted reports whether each switch has as many addresses as the model. Counting takes little CPU
// time, so it does not slow down the hosts that the test measures.
func (f *fleet) counted() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, h := range f.hosts {
		if want, exact := f.model.addresses(h.n); exact && h.recorder().Addresses() != want {
			return false
		}
	}
	return true
}

func (f *fleet) difference(h *host) string {
	f.mu.Lock()
	defer f.mu.Unlock()
	if want, exact := f.model.addresses(h.n); exact {
		if got := h.recorder().Addresses(); got != want {
			return fmt.Sprintf("%d addresses, expected %d", got, want)
		}
	}
	return f.model.expect(h.n).Difference(h.recorder())
}

func (f *fleet) received() (list []float64) {
	for _, h := range f.hosts {
		list = append(list, float64(h.agent().Stats().Received))
	}
	slices.Sort(list)
	return list
}

var errTime = errors.New("the time is over")

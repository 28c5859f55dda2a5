// SPDX-License-Identifier: Apache-2.0

// Package central measures weft-central with many hosts on one machine. Three
// processes are centrals, each with a member of etcd, a hub and a gRPC server with
// mutual TLS. The driver, a fourth process, runs a real agent for each host. In place
// of a switch, each agent has a recorder, which only stores what the agent programs.
// The driver has its own model of what each switch should have. A measured time
// counts only if an oracle (package centraltest) finds no difference on any host.
//
// Some parts are not real: there is no data plane, the network between hosts and
// centrals is the loopback, and the three centrals share one disk.
package central

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"weft/central/wire"
)

// Options are the options of Run.
type Options struct {
	Self       []string // command line of a program that calls Serve; Run appends Serve's argument
	Hosts      int
	Ports      int
	Topology   string // recorded, flat or small
	Batch      int    // number of ports in one request; 0: all
	Scenarios  []string
	Rate       float64       // number of ports added per second during churn
	Length     time.Duration // length of churn
	Life       time.Duration // lifetime of a port during churn
	Dir        string        // directory of etcd's data; if empty, Run uses a temporary directory
	AgentFiles bool          // agents store their state in files
	Profile    string        // directory for CPU profiles; if empty, Run records none
	Seed       uint64
	Limit      time.Duration // time limit of one step
	Log        func(format string, args ...any)
}

// Scenarios has the names of all scenarios in the order in which they run. Every run
// begins with the scenario load.
var Scenarios = []string{"load", "sync", "churn", "leader", "restart"}

// Row is one measured value.
type Row struct {
	Name  string  `json:"name"`
	Value float64 `json:"value"`
	Unit  string  `json:"unit"`
}

// run is one run in progress.
type run struct {
	Options
	ctx     context.Context
	cluster *cluster
	fleet   *fleet
	random  *rand.Rand
	rows    []Row
	// revision is the revision of the last acknowledged write.
	revision int64
	before   int64 // resident memory of the driver without agents, in bytes
}

// Run runs the scenarios and returns the measured values. If a scenario fails, Run
// also returns the values measured before.
func Run(ctx context.Context, o Options) (rows []Row, err error) {
	if !slices.ContainsFunc(topologies, func(t topology) bool { return t.name == o.Topology }) {
		return nil, fmt.Errorf("there is no topology %q: expected recorded, flat or small", o.Topology)
	}
	for _, s := range o.Scenarios {
		if !slices.Contains(Scenarios, s) {
			return nil, fmt.Errorf("there is no scenario %q: expected some of %s", s, strings.Join(Scenarios, ", "))
		}
	}
	if o.Dir == "" {
		if o.Dir, err = os.MkdirTemp("", "weft-central-"); err != nil {
			return nil, err
		}
		defer os.RemoveAll(o.Dir)
	}
	if err := os.MkdirAll(o.Dir, 0o700); err != nil {
		return nil, err
	}
	r, err := start(ctx, o)
	if err != nil {
		return nil, err
	}
	defer r.end()
	for _, s := range Scenarios {
		if s != "load" && !slices.Contains(o.Scenarios, s) {
			continue
		}
		o.Log("%s", s)
		stop := r.profile(s)
		err := map[string]func() error{"load": r.load, "sync": r.sync, "churn": r.churn, "leader": r.leader, "restart": r.restart}[s]()
		stop()
		if err != nil {
			return r.rows, fmt.Errorf("%s: %w", s, err)
		}
	}
	return r.rows, nil
}

func start(ctx context.Context, o Options) (*run, error) {
	r := &run{Options: o, ctx: ctx, random: rand.New(rand.NewPCG(o.Seed, 1))}
	ca, err := newAuthority()
	if err != nil {
		return nil, err
	}
	files := ""
	if o.AgentFiles {
		files = filepath.Join(o.Dir, "agents")
		if err := os.Mkdir(files, 0o700); err != nil {
			return nil, err
		}
	}
	step, cancel := r.step()
	defer cancel()
	if r.cluster, err = startCluster(step, o.Self, o.Dir, ca); err != nil {
		return nil, err
	}
	i := slices.IndexFunc(topologies, func(t topology) bool { return t.name == o.Topology })
	r.fleet = newFleet(newModel(o.Hosts, topologies[i].nets(o.Ports)), r.cluster, files)
	return r, nil
}

func (r *run) end() {
	r.fleet.halt()
	r.cluster.kill()
}

func (r *run) step() (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(r.ctx, r.Limit, errTime)
}

func (r *run) add(name string, value float64, unit string) {
	r.rows = append(r.rows, Row{name, value, unit})
	r.Log("  %-58s %12.3f %s", name, value, unit)
}

func (r *run) seconds(name string, d time.Duration) { r.add(name, d.Seconds(), "s") }

func (r *run) milliseconds(name string, d time.Duration) { r.add(name, 1000*d.Seconds(), "ms") }

// load measures how long an empty fleet takes to receive all its ports.
func (r *run) load() error {
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
	var err error
	if r.revision, err = r.cluster.apply(ctx, first, time.Minute); err != nil {
		return err
	}
	r.seconds("networks and hosts written", clock()-began)
	ports := f.model.fill(r.Ports, r.random)
	r.before, _ = memoryOf(os.Getpid())
	began = clock()
	if err := f.start(); err != nil {
		return err
	}
	at, err := await(ctx, "agents connect", func() bool { return f.connected() == r.Hosts })
	if err != nil {
		return fmt.Errorf("%w (%d of %d)", err, f.connected(), r.Hosts)
	}
	r.seconds("all agents connected", at-began)
	cpu, driver := r.cluster.cpu(), cpuOf(os.Getpid())
	began = clock()
	if err := r.declare(ctx, ports); err != nil {
		return err
	}
	r.seconds("ports written", clock()-began)
	last, err := f.asExpected(ctx)
	if err != nil {
		return err
	}
	r.seconds("every host as expected", last-began)
	r.seconds("CPU of the centrals for it", f.countedCentrals-cpu)
	r.seconds("CPU of the agents for it", f.countedDriver-driver)
	r.memory()
	return r.consistent(ctx)
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
	for i := range r.cluster.nodes {
		now, most := memoryOf(r.cluster.nodes[i].process.Process.Pid)
		r.add(fmt.Sprintf("resident memory of central %d", i), float64(now)/1e6, "MB")
		r.add(fmt.Sprintf("its highest value %d", i), float64(most)/1e6, "MB")
	}
	now, _ := memoryOf(os.Getpid())
	r.add("resident memory an agent, with its recorder", float64(now-r.before)/1e6/float64(r.Hosts), "MB")
	bytes := r.fleet.received()
	r.add("bytes received by a host, median", quantile(bytes, 0.5)/1e3, "kB")
	r.add("bytes received by a host, most", quantile(bytes, 1)/1e3, "kB")
}

// consistent returns an error if etcd lacks an acknowledged write or binds a port to
// the wrong host.
func (r *run) consistent(ctx context.Context) error {
	objects, err := r.cluster.stored(ctx)
	if err != nil {
		return err
	}
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
			return fmt.Errorf("port %s was acknowledged and is lost", id)
		}
		if want := m.hosts[p.host].Id; bound[id] != want {
			return fmt.Errorf("port %s is bound to %q, expected %s", id, bound[id], want)
		}
	}
	for id := range ports {
		if m.ports[id] == nil {
			return fmt.Errorf("port %s was deleted and is stored", id)
		}
	}
	for id := range bound {
		if m.ports[id] == nil {
			return fmt.Errorf("port %s was deleted and is bound", id)
		}
	}
	r.fleet.watcher.mu.Lock()
	defer r.fleet.watcher.mu.Unlock()
	if w := r.fleet.watcher.wrong; len(w) > 0 {
		return fmt.Errorf("%d violations: %s", len(w), w[0])
	}
	return nil
}

// sync measures how long "weft sync --wait=hosts" waits after a change of one port.
func (r *run) sync() error {
	ctx, cancel := r.step()
	defer cancel()
	var times []time.Duration
	for n := range 20 {
		net := r.fleet.model.nets[n%len(r.fleet.model.nets)]
		p := r.fleet.model.port(net, 0)
		for _, change := range []*wire.Change{{Change: &wire.Change_SetPort{SetPort: p.Port}}, {Change: &wire.Change_DeletePort{DeletePort: p.Id}}} {
			revision, err := r.cluster.apply(ctx, &wire.ChangeRequest{Changes: []*wire.Change{change}}, time.Minute)
			if err != nil {
				return err
			}
			began := clock()
			hosts, err := r.cluster.sync(ctx, revision)
			if err != nil || hosts != r.Hosts {
				return fmt.Errorf("sync has %d of %d hosts: %w", hosts, r.Hosts, err)
			}
			times = append(times, clock()-began)
			r.revision = revision
		}
	}
	slices.Sort(times)
	r.milliseconds("sync --wait=hosts, median", quantile(times, 0.5))
	r.milliseconds("sync --wait=hosts, longest", quantile(times, 1))
	return nil
}

func (r *run) newChurn(patience time.Duration) *churn {
	r.fleet.watcher.reset()
	return &churn{cluster: r.cluster, fleet: r.fleet, rate: r.Rate, life: r.Life, patience: patience,
		random: rand.New(rand.NewPCG(r.Seed, r.random.Uint64()))}
}

func (r *run) churn() error {
	c := r.newChurn(10 * time.Second)
	cpu, driver, began := r.cluster.cpu(), cpuOf(os.Getpid()), clock()
	ctx, cancel := context.WithTimeout(r.ctx, r.Length)
	defer cancel()
	c.run(ctx)
	took, came := (clock() - began).Seconds(), float64(max(1, len(c.writes)/2))
	cpu, driver = r.cluster.cpu()-cpu, cpuOf(os.Getpid())-driver
	r.latencies(c)
	r.add("CPU of the centrals a port that came and went", 1000*cpu.Seconds()/came, "ms")
	r.add("CPU of the agents and the driver a port", 1000*driver.Seconds()/came, "ms")
	r.add("CPU of the centrals", cpu.Seconds()/took, "cores")
	r.add("CPU of the agents and the driver", driver.Seconds()/took, "cores")
	return r.settle(c)
}

func (r *run) latencies(c *churn) {
	seen := r.fleet.watcher.take()
	writes := c.latencies()
	r.add("ports that came", float64(len(seen.pings)+seen.silent), "ports")
	r.milliseconds("write acknowledged, median", quantile(writes, 0.5))
	r.milliseconds("write acknowledged, 99 %", quantile(writes, 0.99))
	r.milliseconds("create to first answered ping, median", quantile(seen.pings, 0.5))
	r.milliseconds("create to first answered ping, 99 %", quantile(seen.pings, 0.99))
	r.add("ports whose ping was not answered before they went", float64(seen.silent), "ports")
	if len(seen.all) > 0 {
		r.milliseconds("all hosts know it, median", quantile(seen.all, 0.5))
		r.milliseconds("all hosts know it, 99 %", quantile(seen.all, 0.99))
	}
	r.add("ports not known everywhere before they went", float64(seen.late), "ports")
}

func (r *run) settle(c *churn) error {
	ctx, cancel := r.step()
	defer cancel()
	if len(c.failed) > 0 {
		return fmt.Errorf("%d writes failed: %w", len(c.failed), c.failed[0])
	}
	if _, err := r.fleet.asExpected(ctx); err != nil {
		return err
	}
	return r.consistent(ctx)
}

// leader kills the central that leads etcd, and later stops the next leader. Churn
// continues meanwhile.
func (r *run) leader() error {
	c := r.newChurn(time.Second)
	c.life = max(c.life, leaderLife)
	churning, cancel := context.WithCancel(r.ctx)
	defer cancel()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		c.run(churning)
	}()
	killed, stopped, err := r.disturb()
	cancel()
	<-ended
	if err != nil {
		return err
	}
	first, longest := c.writesAfter(killed)
	r.seconds("SIGKILL of the leader: writes succeed after", first)
	first, _ = c.writesAfter(stopped)
	r.seconds("SIGSTOP of the leader: writes succeed after", first)
	r.seconds("longest write", longest)
	seen := r.fleet.watcher.take()
	r.seconds("all hosts know a new port, 99 %", quantile(seen.all, 0.99))
	r.seconds("all hosts know a new port, longest", quantile(seen.all, 1))
	r.add("ports not known everywhere before they went", float64(seen.late), "ports")
	began := clock()
	if err := r.settle(c); err != nil {
		return err
	}
	r.seconds("after the last change: every host as expected within", clock()-began)
	return nil
}

// leaderLife is the shortest lifetime of a port in the scenario leader.
const leaderLife = 15 * time.Second

const pauseLength = 5 * time.Second

func (r *run) disturb() (killed, stopped time.Duration, err error) {
	ctx, cancel := r.step()
	defer cancel()
	time.Sleep(3 * time.Second)
	i, err := r.cluster.leader(ctx)
	if err != nil {
		return 0, 0, err
	}
	killed = clock()
	r.cluster.end(i)
	time.Sleep(5 * time.Second)
	if err := r.cluster.start(i); err != nil {
		return 0, 0, err
	}
	if _, err := await(ctx, "the killed central comes back", func() bool {
		s, err := r.cluster.status(ctx, i)
		return err == nil && s.GetCentrals()[0].GetHealthy()
	}); err != nil {
		return 0, 0, err
	}
	time.Sleep(3 * time.Second)
	if i, err = r.cluster.leader(ctx); err != nil {
		return 0, 0, err
	}
	stopped = clock()
	r.cluster.signal(i, syscall.SIGSTOP)
	time.Sleep(pauseLength)
	r.cluster.signal(i, syscall.SIGCONT)
	time.Sleep(3 * time.Second)
	return killed, stopped, nil
}

// restart measures the recovery after all centrals were killed: with stored agent
// state, then without it.
func (r *run) restart() error {
	before := r.fleet.received()
	if err := r.comeBack("with state", func() error { return nil }); err != nil {
		return err
	}
	after := r.fleet.received()
	r.add("bytes received by a host for it, median", (quantile(after, 0.5)-quantile(before, 0.5))/1e3, "kB")
	r.fleet.halt()
	r.fleet.dir = ""
	if err := r.comeBack("without state", r.fleet.start); err != nil {
		return err
	}
	r.add("bytes received by a cold host, median", quantile(r.fleet.received(), 0.5)/1e3, "kB")
	r.add("bytes received by a cold host, most", quantile(r.fleet.received(), 1)/1e3, "kB")
	r.memory()
	return nil
}

func (r *run) comeBack(how string, start func() error) error {
	ctx, cancel := r.step()
	defer cancel()
	cpu, driver := r.cluster.cpu(), cpuOf(os.Getpid())
	began := clock()
	r.cluster.kill()
	for i := range r.cluster.nodes {
		if err := r.cluster.start(i); err != nil {
			return err
		}
	}
	if err := start(); err != nil {
		return err
	}
	served, err := await(ctx, "a central answers", func() bool { return r.sessions(ctx) > 0 })
	if err != nil {
		return err
	}
	at, err := await(ctx, "hosts come back", func() bool { return r.sessions(ctx) == r.Hosts })
	if err != nil {
		return fmt.Errorf("%w: %d of %d", err, r.sessions(ctx), r.Hosts)
	}
	last, err := r.fleet.asExpected(ctx)
	if err != nil {
		return err
	}
	r.seconds("all centrals killed and started: first session after", served-began)
	r.seconds("all hosts are back, "+how, max(at, last)-began)
	r.seconds("CPU of the centrals for it", r.fleet.countedCentrals-cpu)
	r.seconds("CPU of the agents for it", r.fleet.countedDriver-driver)
	return r.consistent(ctx)
}

func (r *run) sessions(ctx context.Context) (n int) {
	for i := range r.cluster.nodes {
		if s, err := r.cluster.status(ctx, i); err == nil {
			n += int(s.GetConnected())
		}
	}
	return n
}

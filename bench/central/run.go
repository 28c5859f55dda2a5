// SPDX-License-Identifier: Apache-2.0

// Package central measures weft-central with many hosts on one machine. Three processes of
// weft-central form a cluster. A fourth process, the driver, simulates the hosts. Each simulated host
// has a real agent. In place of a switch, it has a recorder, which only stores what the agent would
// program into the switch. There are also real hosts: processes of weftd in network namespaces (see
// type site).
//
// The driver keeps its own model of the state that each switch should have. It reports a measured time
// only after a check has found that all hosts agree with the model, and that the store has all
// acknowledged writes.
//
// The simulation has limits: most hosts forward no frames, the network between hosts and centrals has
// no delay, and the three centrals share one disk.
package central

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"weft/e2e/lab"
)

// Options say how many simulated and real hosts the test has, what it does with them, and where its
// files are.
type Options struct {
	Central    string   // path of the program weft-central; if empty, Run starts Self instead
	Bin        string   // directory of the programs weftd and weft, for real hosts
	Self       []string // command line of a program that calls Serve when ConfigVariable is set
	IP         string   // address at which the centrals listen
	Hosts      int      // simulated hosts
	Real       int      // real hosts
	Ports      int
	Topology   string // recorded, flat or small
	Batch      int    // number of ports in one request; 0: all of them
	Scenarios  []string
	Rate       float64       // number of ports that churn adds each second; it deletes as many
	Length     time.Duration // how long churn adds ports
	Life       time.Duration // how long a port exists during churn
	Dir        string        // directory of etcd's data
	AgentFiles bool          // agents save their state in files
	Profile    string        // directory for CPU profiles; if empty, Run records none
	Seed       uint64
	Limit      time.Duration // time limit of one step
	Log        func(format string, args ...any)
}

// Scenarios has the names of all scenarios in the order in which they run. Each run begins with load.
// The scenarios move and off need real hosts.
var Scenarios = []string{"load", "sync", "churn", "move", "leader", "restart", "off"}

// Row is one measured value. Name is unique within the scenario.
type Row struct {
	Scenario string  `json:"scenario"`
	Name     string  `json:"name"`
	Value    float64 `json:"value"`
	Unit     string  `json:"unit"`
}

// run is one call of Run: its options, its weft-central servers and hosts, and the values measured so
// far.
type run struct {
	Options
	ctx     context.Context
	cluster *cluster
	fleet   *fleet
	random  *rand.Rand
	rows    []Row
	phase   string // name of the present scenario
	// revision is the store's revision after the last acknowledged write.
	revision  int64
	oldMemory int64 // resident memory of the driver before it starts agents, in bytes
}

// Run runs the scenarios and returns the measured values. If a scenario fails, Run also returns the
// values that were measured before.
func Run(ctx context.Context, o Options) (rows []Row, err error) {
	if !slices.ContainsFunc(topologies, func(t topology) bool { return t.name == o.Topology }) {
		return nil, fmt.Errorf("there is no topology %q: expected recorded, flat or small", o.Topology)
	}
	for _, s := range o.Scenarios {
		if !slices.Contains(Scenarios, s) {
			return nil, fmt.Errorf("there is no scenario %q: expected some of %s", s, strings.Join(Scenarios, ", "))
		}
	}
	if err := os.MkdirAll(o.Dir, 0o700); err != nil {
		return nil, err
	}
	var r *run
	if err := lab.Attempt(func() { r = start(ctx, o) }); err != nil {
		return nil, err
	}
	defer r.end()
	for _, s := range Scenarios {
		if s != "load" && !slices.Contains(o.Scenarios, s) {
			continue
		}
		if err := r.play(s); err != nil {
			r.fleet.site.logs()
			return r.rows, fmt.Errorf("%s: %w", s, err)
		}
	}
	return r.rows, nil
}

// play runs one scenario. Meanwhile the guests of real hosts ping each other, except in the scenario
// load.
func (r *run) play(scenario string) error {
	r.Log("%s", scenario)
	r.phase = scenario
	defer r.profile(scenario)()
	var steady []series
	if scenario != "load" {
		if err := lab.Attempt(func() { steady = r.fleet.site.steady() }); err != nil {
			return err
		}
	}
	before := r.fleet.site.drops()
	err := lab.Attempt(map[string]func(){"load": r.load, "sync": r.sync, "churn": r.churn, "move": r.move, "leader": r.leader,
		"restart": r.restart, "off": r.withoutCentrals}[scenario])
	err = errors.Join(err, lab.Attempt(func() { r.endSteady(steady) }))
	if len(steady) > 0 {
		for reason, n := range r.fleet.site.drops() {
			if n > before[reason] {
				r.add("dropped frames: "+reason, float64(n-before[reason]), "frames")
			}
		}
	}
	return err
}

func start(ctx context.Context, o Options) *run {
	r := &run{Options: o, ctx: ctx, random: rand.New(rand.NewPCG(o.Seed, 1))}
	ca := newAuthority()
	files := ""
	if o.AgentFiles {
		files = filepath.Join(o.Dir, "agents")
		lab.Check(os.Mkdir(files, 0o700))
	}
	step, cancel := r.step()
	defer cancel()
	r.cluster = startCluster(step, &o, ca)
	i := slices.IndexFunc(topologies, func(t topology) bool { return t.name == o.Topology })
	r.fleet = newFleet(newModel(o.Hosts, o.Real, topologies[i].nets(o.Ports)), r.cluster, files)
	if o.Real > 0 {
		var err error
		if r.fleet.site, err = newSite(&o, r.fleet.model, r.cluster); err != nil {
			r.end()
			lab.Check(err)
		}
	}
	return r
}

func (r *run) end() {
	r.fleet.halt()
	r.fleet.site.end()
	r.cluster.kill()
}

// hostCount returns the number of all hosts.
func (r *run) hostCount() int { return r.Hosts + r.Real }

func (r *run) step() (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(r.ctx, r.Limit, errTime)
}

func (r *run) add(name string, value float64, unit string) {
	r.rows = append(r.rows, Row{r.phase, name, value, unit})
	r.Log("  %-58s %12.3f %s", name, value, unit)
}

func (r *run) seconds(name string, d time.Duration) { r.add(name, d.Seconds(), "s") }

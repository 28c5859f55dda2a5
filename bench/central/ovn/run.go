// SPDX-License-Identifier: Apache-2.0

// Package ovn measures the central components of OVN, for comparison with weft-central
// (see package bench/central): the northbound and the southbound database, each in a
// cluster of three servers, and one ovn-northd, all from Debian's package ovn-central.
// The hosts are simulated (see type chassis), so the figures do not include the time in
// which hosts compute and install flows. There are no routers and no ACLs.
package ovn

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"weft/bench"
	"weft/bench/central"
)

// Options say how many hosts and ports the test has, and how fast it adds ports.
type Options struct {
	Hosts, Ports int
	Batch        int // ports of one transaction
	Scenarios    []string
	Rate         float64 // number of ports that churn adds each second
	Length, Life time.Duration
	Timer        time.Duration // how long followers wait for the leader before an election
	Limit        time.Duration // time limit of a step
	Dir          string
	Log          func(format string, args ...any)
}

// Scenarios has the names of all scenarios. They mean the same as in package bench/central.
var Scenarios = []string{"load", "sync", "churn", "leader", "restart"}

// perSwitch is the number of ports of a logical switch.
const perSwitch = 250

type run struct {
	Options
	ctx        context.Context
	nb, sb     *database
	northd     *exec.Cmd
	north      *client
	chassis    []*chassis
	home       map[string]int // index of the chassis of each port
	switches   int
	ports      int // number of ports made so far, including deleted ones
	stop       context.CancelFunc
	running    sync.WaitGroup
	rows       []central.Row
	scenario   string
	mu         sync.Mutex // guards the fields below
	up         map[string]time.Time
	hvCfg      float64
	changed    chan struct{} // closed when up or hvCfg changes next
	switchOf   map[string]int
	lastNumber float64
}

// Run runs the scenarios. If a scenario fails, Run also returns the values that were measured before.
func Run(ctx context.Context, o Options) (rows []central.Row, err error) {
	r := &run{Options: o, home: map[string]int{}, switchOf: map[string]int{}, up: map[string]time.Time{}, changed: make(chan struct{}),
		switches: max(1, o.Ports/perSwitch)}
	r.ctx, r.stop = context.WithCancel(ctx)
	defer r.end()
	if err := r.start(); err != nil {
		return nil, fmt.Errorf("start: %w", err)
	}
	for _, s := range Scenarios {
		if s != "load" && !slices.Contains(o.Scenarios, s) {
			continue
		}
		r.scenario = s
		o.Log("%s", s)
		if err := map[string]func() error{"load": r.load, "sync": r.sync, "churn": r.churn, "leader": r.leader, "restart": r.restart}[s](); err != nil {
			return r.rows, fmt.Errorf("%s: %w", s, err)
		}
	}
	return r.rows, nil
}

func (r *run) start() (err error) {
	if r.nb, err = startDatabase(r.Dir, northbound, "nb", "ovn-nb.ovsschema", 6640, r.Timer); err != nil {
		return err
	}
	if r.sb, err = startDatabase(r.Dir, southbound, "sb", "ovn-sb.ovsschema", 6650, r.Timer); err != nil {
		return err
	}
	r.northd = exec.Command("ovn-northd", "--ovnnb-db="+r.nb.addresses(), "--ovnsb-db="+r.sb.addresses(),
		"--unixctl="+filepath.Join(r.Dir, "northd.ctl"), "-vconsole:off", "-vfile:info", "--log-file="+filepath.Join(r.Dir, "northd.log"))
	if err := bench.StartWithParent(r.northd); err != nil {
		return err
	}
	if r.north, err = dial(r.nb.servers[0].address, r.update); err != nil {
		return err
	}
	_, err = r.north.transact(r.Limit, northbound, map[string]any{"op": "insert", "table": "NB_Global", "row": map[string]any{}})
	if err != nil && !isThere(err) {
		return err
	}
	return r.north.monitor(r.Limit, northbound, "ports", map[string]any{
		"Logical_Switch_Port": columns([]any{true}, "name", "up"),
		"NB_Global":           columns([]any{true}, "hv_cfg"),
	})
}

// isThere reports whether an insertion failed because northd has already inserted the row. NB_Global
// can have only one row.
func isThere(err error) bool { return err != nil && errors.Is(err, errConstraint) }

func (r *run) end() {
	r.stop()
	r.running.Wait()
	if r.north != nil {
		r.north.close()
	}
	if r.northd != nil && r.northd.Process != nil {
		_ = r.northd.Process.Kill()
		_ = r.northd.Wait()
	}
	r.nb.killAll()
	r.sb.killAll()
}

// update handles changed rows of the northbound database.
func (r *run) update(_ string, changed tables) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, row := range changed["NB_Global"] {
		if n, ok := row.columns()["hv_cfg"].(float64); ok {
			r.hvCfg = n
		}
	}
	for id, row := range changed["Logical_Switch_Port"] {
		now := row.columns()
		name, _ := now["name"].(string)
		if name != "" {
			names[id] = name
		}
		if up, ok := now["up"].(bool); ok && up {
			if _, before := r.up[names[id]]; !before {
				r.up[names[id]] = time.Now()
			}
		}
		if now == nil {
			delete(names, id)
		}
	}
	close(r.changed)
	r.changed = make(chan struct{})
}

// names has the names of logical switch ports by the UUIDs of their rows. Only the method update uses
// it.
var names = map[string]string{}

// await waits until check returns true. It holds mu while it calls check.
func (r *run) await(limit time.Duration, check func() bool) bool {
	end := time.After(limit)
	for {
		r.mu.Lock()
		done, changed := check(), r.changed
		r.mu.Unlock()
		if done {
			return true
		}
		select {
		case <-changed:
		case <-end:
			return false
		case <-r.ctx.Done():
			return false
		}
	}
}

func (r *run) add(name string, value float64, unit string) {
	r.rows = append(r.rows, central.Row{Scenario: r.scenario, Name: name, Value: value, Unit: unit})
	r.Log("  %-58s %12.3f %s", name, value, unit)
}

func (r *run) seconds(name string, d time.Duration) { r.add(name, d.Seconds(), "s") }

// newPort returns the name of a new port and assigns it to a chassis.
func (r *run) newPort(sw, host int) string {
	r.ports++
	name := fmt.Sprint("p", r.ports)
	r.home[name], r.switchOf[name] = host, sw
	r.chassis[host].add(name)
	return name
}

// declare writes new ports of one switch into the northbound database.
func (r *run) declare(limit time.Duration, sw int, ports []string) error {
	var operations []any
	var ids []any
	for i, name := range ports {
		var n int
		_, _ = fmt.Sscanf(name, "p%d", &n)
		row := fmt.Sprint("row", i)
		ids = append(ids, named(row))
		address := fmt.Sprintf("02:00:00:%02x:%02x:%02x 172.%d.%d.%d", n>>16&255, n>>8&255, n&255, 16+n>>16, n>>8&255, n&255)
		operations = append(operations, map[string]any{"op": "insert", "table": "Logical_Switch_Port", "uuid-name": row,
			"row": map[string]any{"name": name, "addresses": address}})
	}
	operations = append(operations, map[string]any{"op": "mutate", "table": "Logical_Switch", "where": condition("name", fmt.Sprint("sw", sw)),
		"mutations": []any{[]any{"ports", "insert", set(ids)}}})
	_, err := r.north.transact(limit, northbound, operations...)
	return err
}

// load writes all ports into an empty northbound database, and measures the time until the database
// shows all of them as up. A port is up when a chassis has claimed it.
func (r *run) load() error {
	var operations []any
	for n := range r.switches {
		operations = append(operations, map[string]any{"op": "insert", "table": "Logical_Switch", "row": map[string]any{"name": fmt.Sprint("sw", n)}})
	}
	if _, err := r.north.transact(r.Limit, northbound, operations...); err != nil {
		return err
	}
	var servers []string
	for i := range r.sb.servers {
		servers = append(servers, r.sb.servers[i].address)
	}
	for n := range r.Hosts {
		r.chassis = append(r.chassis, newChassis(n, servers, r.Limit))
	}
	order := rand.New(rand.NewPCG(1, 1)).Perm(r.Ports)
	var ports []string
	for i := range r.Ports {
		ports = append(ports, r.newPort(i*r.switches/r.Ports, order[i]%r.Hosts))
	}
	cpu, driver := r.cpu(), central.CPUOf(os.Getpid())
	connecting := time.Now()
	for _, h := range r.chassis {
		r.running.Go(func() { h.run(r.ctx) })
	}
	if err := r.connected(connecting); err != nil {
		return err
	}
	r.seconds("all hosts connected", time.Since(connecting))
	began := time.Now()
	for batch := range slices.Chunk(ports, r.Batch) {
		if err := r.declare(r.Limit, r.switchOf[batch[0]], batch); err != nil {
			return err
		}
	}
	r.seconds("ports written", time.Since(began))
	err := r.allUp(r.Limit - time.Since(began))
	if err == nil {
		r.seconds("every host as expected", time.Since(connecting))
	}
	r.seconds("CPU time of the centrals", r.cpu()-cpu)
	r.seconds("CPU time of the northbound servers", cpuOf(r.nb.processes()...))
	r.seconds("CPU time of the southbound servers", cpuOf(r.sb.processes()...))
	r.seconds("CPU time of northd", cpuOf(r.northd))
	r.seconds("CPU time of the simulated hosts", central.CPUOf(os.Getpid())-driver)
	r.ended()
	if err != nil {
		return err
	}
	r.memory()
	return r.consistent()
}

// connected waits until the monitors of all chassis have been answered.
func (r *run) connected(began time.Time) error {
	for {
		n := 0
		var last error
		for _, h := range r.chassis {
			h.mu.Lock()
			if h.connected {
				n++
			} else if h.last != nil {
				last = h.last
			}
			h.mu.Unlock()
		}
		if n == len(r.chassis) {
			return nil
		}
		if time.Since(began) > r.Limit || r.ctx.Err() != nil {
			return fmt.Errorf("%d of %d hosts are connected after %s: %v", n, len(r.chassis), r.Limit, last)
		}
		time.Sleep(50 * time.Millisecond)
	}
}

func (r *run) allUp(limit time.Duration) error {
	n := 0
	if r.await(limit, func() bool {
		n = 0
		for name := range r.home {
			if _, up := r.up[name]; up {
				n++
			}
		}
		return n == len(r.home)
	}) {
		return nil
	}
	return fmt.Errorf("%d of %d ports are up after %s", n, len(r.home), r.Limit)
}

func (r *run) cpu() time.Duration {
	return cpuOf(r.nb.processes()...) + cpuOf(r.sb.processes()...) + cpuOf(r.northd)
}

func cpuOf(list ...*exec.Cmd) (sum time.Duration) {
	for _, p := range list {
		sum += central.CPUOf(p.Process.Pid)
	}
	return sum
}

// ended reports how many connections of chassis have ended so far, and why the last one ended. During
// load none should end, because a chassis reads all its rows again after it has reconnected.
func (r *run) ended() {
	n := 0
	var last error
	for _, h := range r.chassis {
		h.mu.Lock()
		if n += h.failures; h.last != nil {
			last = h.last
		}
		h.mu.Unlock()
	}
	r.add("ended connections of hosts", float64(n), "connections")
	if last != nil {
		r.Log("  the last one: %v", last)
	}
}

func (r *run) memory() {
	var largest int64
	for _, p := range r.sb.processes() {
		_, most := central.MemoryOf(p.Process.Pid)
		largest = max(largest, most)
	}
	r.add("highest resident memory of a central", float64(largest), "B")
}

// consistent checks that the southbound database binds each port to the right chassis.
func (r *run) consistent() error {
	c, err := dial(r.sb.servers[0].address, func(string, tables) {})
	if err != nil {
		return err
	}
	defer c.close()
	results, err := c.transact(r.Limit, southbound, map[string]any{"op": "select", "table": "Port_Binding", "where": []any{}, "columns": []string{"logical_port", "chassis"}})
	if err != nil {
		return err
	}
	seen := map[string]bool{}
	rows, _ := results[0]["rows"].([]any)
	for _, raw := range rows {
		row, _ := raw.(map[string]any)
		name, _ := row["logical_port"].(string)
		host, known := r.home[name]
		switch {
		case !known:
			return fmt.Errorf("port %s was deleted and is bound", name)
		case seen[name]:
			return fmt.Errorf("port %s has two rows", name)
		case uuidIn(row["chassis"]) != r.chassis[host].id:
			return fmt.Errorf("port %s is not bound to its chassis", name)
		}
		seen[name] = true
	}
	if len(seen) != len(r.home) {
		return fmt.Errorf("%d of %d ports are bound", len(seen), len(r.home))
	}
	return nil
}

// sync measures how long it takes until all chassis have reported a change. It waits as ovn-nbctl
// --wait=hv does.
func (r *run) sync() error {
	var times []time.Duration
	for range 5 {
		took, err := r.syncOnce(r.Limit)
		if err != nil {
			return err
		}
		times = append(times, took)
	}
	slices.Sort(times)
	r.seconds("sync, median", central.Quantile(times, 0.5))
	r.seconds("sync, longest", central.Quantile(times, 1))
	return nil
}

func (r *run) syncOnce(limit time.Duration) (time.Duration, error) {
	began := time.Now()
	r.lastNumber++
	if _, err := r.north.transact(limit, northbound, map[string]any{"op": "update", "table": "NB_Global", "where": []any{}, "row": map[string]any{"nb_cfg": r.lastNumber}}); err != nil {
		return 0, err
	}
	if !r.await(limit, func() bool { return r.hvCfg >= r.lastNumber }) {
		return 0, fmt.Errorf("the hosts have not reported within %s", limit)
	}
	return time.Since(began), nil
}

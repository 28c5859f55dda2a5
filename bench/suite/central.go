// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"weft/bench/central"
	"weft/bench/central/ovn"
	"weft/e2e/lab"
)

// The experiments below use many hosts. They measure weft-central with package bench/central, and OVN's
// central components with package bench/central/ovn. It takes long to start so many hosts. Therefore
// one run of weft-central or OVN measures all scenarios of a set of hosts, and each row of the report
// takes its value from this run (see type session).

const (
	ovnPeer = "ovn" // the OVN databases with three servers each, and ovn-northd

	// centralVerb and ovnVerb are values of this program's first argument. With them, the program runs
	// the scenarios of one fleet with weft-central or OVN. The other arguments are those of
	// central.Command and ovn.Command.
	centralVerb = "central"
	ovnVerb     = "ovn"
)

// fleet is a set of hosts with ports, and the rows of the report that are measured with it.
type fleet struct {
	name string
	weft []string // arguments of central.Command, besides -scenarios
	ovn  []string // arguments of ovn.Command, besides -scenarios; nil: OVN is not measured
	// played has the scenarios that OVN runs.
	played   []string
	scenario []fleetRow
	limit    time.Duration
}

// fleetRow is a row of the report: one value that a scenario of a fleet measures.
type fleetRow struct {
	name     string // variant of the experiment's name
	scenario string
	value    string // name of the value in the scenario's results
	unit     string
	note     string
}

const simulated = "Simulated: data planes of all hosts but 8, the delay of the network (none), the disks of the centrals (one for all three)."

// fleets has all fleets that are measured. Each time limit is far above the time that a machine with
// two cores needs.
var fleets = []fleet{
	{"1000 hosts", []string{"-hosts", "1000", "-real", "8", "-ports", "10000"}, []string{"-hosts", "1000", "-ports", "10000"}, []string{"load"}, []fleetRow{
		{"load", "load", "every host as expected", "s", "10,000 ports in 40 networks of 250, from an empty store, with hosts that are not connected, until every host is as an oracle computes from the declaration. " + simulated + ovnNote},
		{"churn", "churn", "first answered ping, median", "s", "100 ports a second come and go, every fifth on one of 8 real hosts (weftd in a namespace): from the request to the first ping that the new port answers (an hour if it answers none) to a guest of another real host, one each 2 ms and each 20 ms after 200 ms. The tap exists before, and the other guest knows the MAC address. " + simulated},
		{"churn 99 %", "churn", "first answered ping, 99 %", "s", "The same."},
		{"sync", "sync", "sync, median", "s", "sync --wait=hosts after a change of one port. " + simulated},
		{"SIGKILL of the leader", "leader", "writes back after SIGKILL", "s", "During churn: from the signal to the first acknowledged write that began after it. All acknowledged writes and all bindings are checked at the end."},
		{"SIGSTOP of the leader", "leader", "writes back after SIGSTOP", "s", "The same with SIGSTOP for 5 s."},
		{"SIGKILL and SIGSTOP: lost pings", "leader", "lost pings", "pings", "Pings between guests of 8 real hosts, each 20 ms."},
		{"restart with state", "restart", "all hosts are back, with state", "s", "SIGKILL of all centrals, then start: until all hosts have a session and the expected state. " + simulated},
		{"restart without state", "restart", "all hosts are back, without state", "s", "The same, and the simulated hosts start without state."},
		{"all centrals off: lost pings", "off", "lost pings", "pings", "All centrals are off, and the control process of each of 8 real hosts is killed and starts again meanwhile. Pings between their guests, each 20 ms."},
		{"move", "move", "cut-over, median", "s", "A guest moves between two real hosts: from the RARP frame on the new host to the first ping that it answers there. The guest itself does not pause. Pings each 2 ms."},
		{"memory of an agent", "churn", "agent's share of weftd", "B", "Resident memory of the control process of a weftd with 1,000 addresses, less that of a weftd without --central."},
		{"memory of a central", "churn", "highest resident memory of a central", "B", "The largest of three processes, each with a member of etcd and a hub, after the churn."},
		{"received by a cold host", "restart", "received by a host without state, most", "B", "Bytes of messages before TLS; the host that received most."},
	}, 12 * time.Minute},
	besideOVN("200 hosts", []string{"-hosts", "200", "-ports", "10000", "-rate", "10", "-length", "20s"}, 15*time.Minute),
	besideOVN("50 hosts", []string{"-hosts", "50", "-ports", "10000", "-rate", "10", "-length", "20s"}, 12*time.Minute),
	{"flat", []string{"-hosts", "1000", "-real", "8", "-ports", "10000", "-topology", "flat"}, nil, nil, []fleetRow{
		{"load", "load", "every host as expected", "s", "10,000 ports in one network, whose addresses hosts ask for, on 1,000 hosts. " + simulated},
		{"churn", "churn", "first answered ping, median", "s", "100 ports a second come and go. As with 40 networks, and both hosts ask for the addresses."},
		{"churn 99 %", "churn", "first answered ping, 99 %", "s", "The same."},
	}, 10 * time.Minute},
	{"small", []string{"-hosts", "1000", "-real", "8", "-ports", "10000", "-topology", "small"}, nil, nil, []fleetRow{
		{"load", "load", "every host as expected", "s", "10,000 ports in 1,000 networks of 10, on 1,000 hosts. " + simulated},
		{"churn", "churn", "first answered ping, median", "s", "100 ports a second come and go."},
		{"churn 99 %", "churn", "first answered ping, 99 %", "s", "The same."},
	}, 10 * time.Minute},
	{"million", []string{"-hosts", "10000", "-ports", "1000000", "-million", "-limit", "8m"}, nil, nil, []fleetRow{
		{"load", "million", "load", "s", millionNote},
		{"memory of the hub", "million", "resident memory of the hub", "B", millionNote},
		{"change to the interested hosts 99 %", "million", "change to interested hosts, 99 %", "s", millionNote},
	}, 15 * time.Minute},
}

// besideOVN returns a fleet that is small enough for OVN. Weft and OVN both run ovn.Scenarios with the
// arguments args. Weft has 8 real hosts in addition.
func besideOVN(name string, args []string, limit time.Duration) fleet {
	return fleet{name, append([]string{"-real", "8"}, args...), args, ovn.Scenarios, []fleetRow{
		{"load", "load", "every host as expected", "s", "10,000 ports in 40 networks of 250. " + simulated + ovnNote},
		{"CPU time", "load", "CPU time of the centrals", "s", "CPU time of the central processes for the load. OVN: of the servers of both databases and northd."},
		{"churn of 10 a second", "churn", "first answered ping, median", "s", "As with 1,000 hosts. OVN: from the request until the port is up in the northbound database, which is less than an answered ping. " + simulated},
		{"churn of 10 a second 99 %", "churn", "first answered ping, 99 %", "s", "The same."},
		{"sync", "sync", "sync, median", "s", "OVN: --wait=hv."},
		{"SIGKILL of the leader", "leader", "writes back after SIGKILL", "s", "During churn of 10 a second. OVN, with an election timer of 10 s: the leader of the southbound database, until a port that is added after the signal is up."},
		{"restart", "restart", "all hosts are back, with state", "s", "All centrals are killed and start again. OVN: all servers of the southbound database."},
		{"memory of a server", "load", "highest resident memory of a central", "B", "OVN: the largest server of the southbound database."},
	}, limit}
}

const ovnNote = " OVN's chassis are simulated: each has a connection, monitors conditionally, claims its ports and sets them up, and computes no flows."

const millionNote = "1,000,000 ports in one network, whose addresses hosts ask for, on 10,000 hosts; one hub. Simulated: the store, which is in the hub's memory and is not etcd; the hosts, which are plain clients of the hub's stream without TLS. Load: until every host knows that its ports are bound. Change: 50 ports a second, each with about 50 hosts that have asked for it."

// weftOnly reports whether only Weft has the row's value. OVN's simulated hosts have no agents and
// send no frames.
func (r *fleetRow) weftOnly() bool {
	return strings.Contains(r.value, "pings") || strings.Contains(r.value, "agent")
}

func centralFamily() []*experiment {
	var list []*experiment
	for _, f := range fleets {
		s := &session{fleet: f, chosen: map[string]bool{}, turns: map[turnKey]*turn{}}
		for _, row := range f.scenario {
			peers := []string{weftPeer}
			if slices.Contains(f.played, row.scenario) && !row.weftOnly() {
				peers = append(peers, ovnPeer)
			}
			e := &experiment{name: "central/" + f.name + ": " + row.name, unit: row.unit, smallerIsBetter: true, peers: peers, note: row.note,
				limit: f.limit, session: s, scenario: row.scenario, measure: s.play}
			e.pick = func(t *turn) (float64, map[string]extra, error) { return t.pick(row) }
			list = append(list, e)
		}
	}
	return list
}

// session is a fleet whose results fill several rows of the report. The first of these rows that is
// measured runs the scenarios of all chosen rows. The other rows take their values from the same run.
type session struct {
	fleet
	chosen map[string]bool // scenarios of the chosen rows
	turns  map[turnKey]*turn
}

type turnKey struct {
	peer string
	run  int
}

// turn has the results of one run of a fleet with weft-central or OVN.
type turn struct {
	result                    central.Result
	err                       error
	regimeBefore, regimeAfter time.Duration // states of the machine's caches (bench.Regime)
}

// sharedTurn returns the results of a run if another row of the session has already measured it with
// the same switch, or nil.
func (e *experiment) sharedTurn(peer string, run int) *turn {
	if e.session == nil {
		return nil
	}
	return e.session.turns[turnKey{peer, run}]
}

// keep stores the results of one run for the other rows of the fleet. It returns the value of this row.
func (e *experiment) keep(peer string, run int, t *turn, regimeBefore, regimeAfter time.Duration, err error) (float64, map[string]extra, error) {
	if t == nil {
		t = &turn{err: err}
	}
	t.regimeBefore, t.regimeAfter = regimeBefore, regimeAfter
	e.session.turns[turnKey{peer, run}] = t
	return e.pick(t)
}

// play runs all scenarios of the session's chosen rows.
func (s *session) play(r *run, peer string) float64 {
	verb, args := centralVerb, s.weft
	if peer == ovnPeer {
		verb, args = ovnVerb, s.ovn
	}
	var scenarios []string
	for _, row := range s.scenario {
		if peer == ovnPeer && !slices.Contains(s.played, row.scenario) {
			continue
		}
		if s.chosen[row.scenario] && !slices.Contains(scenarios, row.scenario) {
			scenarios = append(scenarios, row.scenario)
		}
	}
	file := filepath.Join(r.dir, "result.json")
	dir := filepath.Join(r.dir, "fleet")
	words := append([]string{verb, "-json", file, "-dir", dir, "-scenarios", strings.Join(scenarios, ",")}, args...)
	if verb == centralVerb {
		words = append(words, "-bin", r.bin)
	}
	p := r.startSelf(verb, "", words...)
	<-p.done
	data, err := os.ReadFile(file)
	if err != nil {
		lab.Check(fmt.Errorf("%v: %s", p.err, p.tail()))
	}
	t := &turn{}
	lab.Check(json.Unmarshal(data, &t.result))
	r.turn = t
	return 0
}

// pick returns the value that belongs to "row" in the report, and the other values of the same
// scenario.
func (t *turn) pick(row fleetRow) (figure float64, extras map[string]extra, err error) {
	if t.err != nil {
		return 0, nil, t.err
	}
	extras, found := map[string]extra{}, false
	for _, v := range t.result.Rows {
		switch {
		case v.Scenario != row.scenario:
		case v.Name == row.value:
			figure, found = v.Value, true
		default:
			extras[v.Name] = extra{v.Unit, v.Value}
		}
	}
	switch {
	case found:
		return figure, extras, nil
	case t.result.Error != "":
		return 0, nil, fmt.Errorf("%s", t.result.Error)
	}
	return 0, nil, fmt.Errorf("the scenario %s has no %s", row.scenario, row.value)
}

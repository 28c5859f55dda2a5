// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"weft/bench/replica"
	"weft/e2e/lab"
)

// In the experiments below, three replicas agree on the requests of a client (package replica). They
// use an overlay network between two hosts. The leader and the client are on the same host. The
// switches track and filter all messages.
//
// After the first run of each switch, two more runs follow under perf. One counts system calls, and the
// other samples where the components spend their time.

const (
	weftTapPeer     = "weft-tap"
	replicaRequests = 10_000
	replicaWarmup   = 1000
)

func replicaFamily() []*experiment {
	var list []*experiment
	for _, w := range []struct {
		variant string
		peers   []string
		window  int // requests at a time
		busy    bool
	}{
		{"1 at a time", []string{weftPeer, weftTapPeer, linuxPeer}, 1, false},
		{"64 at a time", []string{weftPeer, weftTapPeer, linuxPeer}, 64, false},
		{"64 at a time, members that never wait", []string{weftPeer, linuxPeer}, 64, true},
	} {
		observed := map[string]bool{}
		list = append(list, &experiment{name: "replica/" + w.variant, unit: "requests/s", peers: w.peers,
			measure: func(r *run, peer string) float64 {
				rate := measureReplicas(r, peer, replica.Config{Requests: replicaRequests, Warmup: replicaWarmup, Window: w.window, Busy: w.busy}, !observed[peer])
				observed[peer] = true
				return rate
			}})
	}
	return append(list, callExperiments()...)
}

func measureReplicas(r *run, peer string, config replica.Config, observe bool) float64 {
	c := &cluster{run: r, peer: peer, config: config}
	c.lay()
	plain := c.agree(c.busy)
	us := func(v float64) float64 { return v / 1e6 }
	r.note("50 %", "s", us(plain.P50))
	r.note("99 %", "s", us(plain.P99))
	r.note("99.9 %", "s", us(plain.P999))
	sums := map[string]replica.CPU{}
	for name, used := range c.used {
		sum := sums[component(name)]
		sums[component(name)] = replica.CPU{User: sum.User + used.User, System: sum.System + used.System}
	}
	for name, sum := range sums {
		r.note("CPU a request, "+name, "s", (sum.User+sum.System)/(replicaRequests+replicaWarmup))
	}
	if !observe {
		return plain.Rate
	}
	c.agree(c.countCalls)
	c.agree(c.sample)
	return plain.Rate
}

// observer begins to observe a run, and returns a function that ends the observation.
type observer func() (finish func(requests int))

func (c *cluster) agree(observe observer) *replica.Report {
	c.members = map[string]*process{}
	defer c.stopMembers()
	for i := range replica.Replicas {
		c.members[memberName(i)] = c.startMember(i)
	}
	client := c.startMember(replica.Client)
	c.members[memberName(replica.Client)] = client
	done := observe()
	client.say("begin")
	client.wait(30 * time.Second)
	done(replicaRequests + replicaWarmup)
	if client.alive() == nil {
		lab.Check(fmt.Errorf("the client did not end: %s", client.tail()))
	}
	report := new(replica.Report)
	if client.err != nil || json.Unmarshal([]byte(client.output()), report) != nil {
		lab.Check(fmt.Errorf("the client: %v: %s", client.err, client.tail()))
	}
	for i, m := range report.Members {
		c.used[memberName(i)] = m
	}
	return report
}

func memberName(i int) string { return [...]string{"leader", "follower 1", "follower 2", "client"}[i] }

func component(name string) string {
	kind, _, many := strings.Cut(name, " ")
	if many {
		kind += "s"
	}
	return kind
}

func (c *cluster) stopMembers() {
	for i := range replica.Replicas {
		if p := c.members[memberName(i)]; p != nil {
			p.wait(2 * time.Second) // the client ends the replicas
		}
	}
	for _, p := range c.members {
		p.stop()
	}
}

func (c *cluster) busy() func(int) {
	c.used = map[string]replica.CPU{}
	before := map[string]replica.CPU{}
	for name, pid := range c.daemons() {
		before[name] = processorTime(pid)
	}
	return func(int) {
		for name, pid := range c.daemons() {
			now := processorTime(pid)
			c.used[name] = replica.CPU{User: now.User - before[name].User, System: now.System - before[name].System}
		}
	}
}

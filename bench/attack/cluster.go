// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"time"

	"weft/api"
	"weft/e2e/lab"
)

// The attacks in this file run against all three servers of a weft-central cluster at once. The
// attackers connect to both addresses of each server: the one for hosts and administrators, and the one
// of etcd. central.go has attacks on a single server.

const (
	// clusterPeak is the number of bytes by which the memory of one server may grow.
	clusterPeak = 768 << 20
	clusterHost = "h1"
)

// memberState is one server of the cluster, with the samples of its memory during the attack.
type memberState struct {
	central *lab.Central
	memory  *memoryWatch
}

// clusterSetup starts three weft-central servers and a host, and then all attacks on each server.
func clusterSetup(p *play) error {
	f, err := startCentrals(p, "a", "b", "c")
	if err != nil {
		return err
	}
	f.Weft("host", "add", clusterHost, "endpoint="+f.Endpoint(0))
	host := f.AddHost(clusterHost, "af_packet")
	keys, err := f.enrolLiar()
	if err != nil {
		return err
	}
	if err := connected(host); err != nil {
		return err
	}
	var members []memberState
	for _, c := range f.Centrals {
		members = append(members, memberState{c, watchMemory(c.Process().PID())})
	}
	p.vars["members"] = members
	p.later(f.stop)
	for _, t := range f.targets {
		if err := errors.Join(idleStrangers(t, idleAtCentral), unfinishedRequests(t)); err != nil {
			return err
		}
		if !t.etcd {
			t.sendNames(keys)
		}
	}
	return nil
}

// connected waits until a host is connected to a weft-central server.
func connected(host *lab.Daemon) error {
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		if isConnected(host) == nil {
			return nil
		}
	}
	return isConnected(host)
}

func isConnected(host *lab.Daemon) error {
	var show api.Show
	host.WeftJSON(&show, "show")
	if c := show.Central; c == nil || !c.Connected {
		return fmt.Errorf("the host is not connected: %+v", c)
	}
	return nil
}

// administrate lists the networks at each server, adds and deletes a network, and checks that the host
// is connected.
func administrate(p *play) error {
	f := p.vars["fleet"].(*fleetPlay)
	for _, c := range f.Centrals {
		if err := p.timed(func() error { return f.ask(c) }); err != nil {
			return fmt.Errorf("at %s: %w", c.Address, err)
		}
	}
	for _, change := range [][]string{{"net", "add", "blue", "vni=1"}, {"net", "del", "blue"}} {
		if err := p.timed(func() error { _, err := f.Try(change...); return err }); err != nil {
			return err
		}
	}
	return isConnected(f.Hosts[0])
}

// clusterLives checks how much the servers' memory has grown. It then kills one server and starts it
// again while the attack goes on. The server must answer, and the host must be connected.
func clusterLives(p *play) error {
	f := p.vars["fleet"].(*fleetPlay)
	for _, m := range p.vars["members"].([]memberState) {
		first, largest := m.memory.end()
		p.notes += fmt.Sprintf(" %s %d to %d MiB", m.central.Host.Name, first>>20, largest>>20)
		if largest-first > clusterPeak {
			return fmt.Errorf("%s grew by %d MiB, the limit is %d", m.central.Host.Name, (largest-first)>>20, clusterPeak>>20)
		}
	}
	c := f.Centrals[2]
	c.Kill()
	c.Run()
	if err := f.answers(c); err != nil {
		return fmt.Errorf("a server does not come back during the attack: %w\n%s", err, c.Process().Output())
	}
	return connected(f.Hosts[0])
}

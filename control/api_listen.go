// SPDX-License-Identifier: Apache-2.0

package control

import (
	"fmt"
	"maps"
	"net/http"
	"os"
	"os/user"
	"runtime/debug"
	"strconv"
	"time"

	"weft/control/access"
	"weft/control/bridges"
	"weft/control/unixctl"
	"weft/control/usererr"
)

func (d *Daemon) listen() error {
	policy := access.Policy{UID: os.Geteuid(), WriteGroup: access.NoGroup, ReadGroup: access.NoGroup, CIDs: access.DefaultCIDs()}
	maps.Copy(policy.CIDs, d.config.VsockAllow)
	for _, g := range []struct {
		name   string
		number *int
	}{{d.config.SocketGroup, &policy.WriteGroup}, {d.config.SocketReadGroup, &policy.ReadGroup}} {
		if err := lookupGroup(g.name, g.number); err != nil {
			return err
		}
	}
	var err error
	d.servers, err = access.Open(access.Config{Socket: d.config.Socket, VsockPort: d.config.VsockPort,
		Metrics: d.config.Metrics, Policy: policy, Log: d.log})
	if err != nil {
		return err
	}
	d.limits.Add(d.servers.LimitRows)
	d.bridges, err = bridges.New(bridges.Setup{Configuration: &d.configuration, Name: d.config.Name, StateDir: d.config.StateDir, OpenFlow: d.config.OpenFlow,
		Store: d.store, Pipeline: d.pipeline, Ports: d.ports, Tracking: d.tracking, Frames: d.controllerFrames, Services: &d.services,
		Policy: &policy, Log: d.log})
	if err != nil {
		d.servers.Close()
		return err
	}
	d.limits.Add(d.bridges.LimitRows)
	if d.config.OVSDB == "" {
		return nil
	}
	if d.unixctl, err = unixctl.Open(d.rundir(), &policy, d.appctl(), d.log); err != nil {
		d.log.Warn("ovs-appctl cannot reach this process", "error", err)
		return nil
	}
	d.limits.Add(d.unixctl.LimitRows)
	return nil
}

// lookupGroup looks up the group with this name, and stores its number. For an empty
// name it does nothing.
func lookupGroup(name string, number *int) error {
	if name == "" {
		return nil
	}
	g, err := user.LookupGroup(name)
	if err != nil {
		return usererr.Errorf("socket group %s: no such group", name)
	}
	*number, err = strconv.Atoi(g.Gid)
	return err
}

func (d *Daemon) serve() {
	d.servers.Serve(endOnPanic(d.onceStarted(d.handler())), endOnPanic(d.metricsHandler()))
}

// onceStarted delays requests until the daemon has started, at most for
// access.ExplainTimeout.
func (d *Daemon) onceStarted(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		select {
		case <-d.ready:
			h.ServeHTTP(w, r)
			return
		default:
		}
		timer := time.NewTimer(access.ExplainTimeout)
		defer timer.Stop()
		select {
		case <-d.ready:
			h.ServeHTTP(w, r)
		case <-r.Context().Done():
		case <-timer.C:
			d.reply(w, nil, d.starting())
		}
	})
}

// errStarting answers a request during a long start.
var errStarting = &unavailable{"weftd is starting: it waits for the engine, or loads flows and ports; try again"}

// starting returns the error of a request during the start, with the reason if the next
// engine cannot start.
func (d *Daemon) starting() error {
	if reason := d.engines.Troubled(); reason != "" {
		return &unavailable{"weftd is starting: " + reason}
	}
	return errStarting
}

// endOnPanic ends the process if the handler h panics. net/http would otherwise
// continue, with locked locks and half-applied changes. The engine keeps forwarding.
func endOnPanic(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer endWithPanic(r.Method + " " + r.URL.Path)
		h.ServeHTTP(w, r)
	})
}

func endWithPanic(request string) {
	if v := recover(); v != nil {
		endProcess(fmt.Sprintf("%s: %v\n\n%s", request, v, debug.Stack()))
	}
}

// endProcess panics in a new goroutine, where nothing recovers the panic; tests replace
// it
var endProcess = func(reason string) {
	go panic(reason)
	select {}
}

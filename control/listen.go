// SPDX-License-Identifier: Apache-2.0

package control

import (
	"maps"
	"os"
	"os/user"
	"strconv"

	"weft/control/access"
	"weft/control/appctl"
	"weft/control/bridges"
	"weft/control/rest"
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

// appctl returns the commands that ovs-appctl can call.
func (d *Daemon) appctl() []unixctl.Command {
	return appctl.Commands(appctl.Setup{Bridges: d.bridges, Ports: d.ports, Pipeline: d.pipeline, MACs: d.macs, Statistics: d.statistics,
		Tracking: d.tracking, HandOver: func() { d.done.Go(d.handOverNow) }, ShutDown: func() { d.done.Go(d.shutDown) },
		LogSettings: d.config.LogSettings, Log: d.log})
}

// lookupGroup stores the number of the group with this name. For an empty name it does nothing.
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

// serve starts to answer the requests to the API and to the metrics listener.
func (d *Daemon) serve() {
	d.servers.Serve(rest.EndOnPanic(d.rest.OnceStarted(d.handler())), rest.EndOnPanic(d.rest.Metrics()))
}

// handler returns the handler of the API's requests. It checks the roles of the clients.
func (d *Daemon) handler() *access.Mux {
	mux := d.servers.NewMux(rest.Routes)
	d.rest.API(mux)
	return mux
}

// registerLimits registers the limits.Source of each package, a function that emits rows of `weft show
// limits`. These functions are called without locks. Two rows with the same name and Holder would break
// the metrics (TestLimitRowsAreUnique).
func (d *Daemon) registerLimits() {
	d.limits.Add(d.pipeline.LimitRows)
	d.limits.Add(d.statistics.LimitRows)
	d.limits.Add(d.tracking.LimitRows)
	d.limits.Add(d.captures.LimitRows)
	d.limits.Add(d.ports.LimitRows)
	d.limits.Add(d.exporters.LimitRows)
}

package engines

import (
	"encoding/json"
	"fmt"

	"weft/conntrack"
	"weft/control/counters"
	"weft/control/observe"
	"weft/control/store"
	"weft/control/workers"
	"weft/engine"
)

// Start brings up engine, ports and flows at the start of the daemon: on
// an engine that lives, without touching what it forwards, else on a new one.
// Caller holds change.
func (d *Engines) Start(saved store.State) error {
	in, err := d.inherit()
	if err != nil {
		return err
	}
	region := in.counters
	if region == nil {
		if region, err = counters.New(d.start.Sizes.Cache.Megaflows); err != nil {
			return err
		}
	}
	d.region = region
	d.pipeline.Load(&saved, region, in.counters != nil)
	d.setEngine(in.client)
	if in.memory != nil {
		w := workers.New(in.memory, in.client.Gone())
		d.guard = d.guardEngine(w, in.client)
		d.pipeline.Inherit(w)
	}
	d.ports.Load(saved.Ports, saved.Names, in.ports)
	for number, k := range in.ports { // ports that were deleted while control died
		k.CloseFDs()
		if in.client != nil {
			_, _ = in.client.Detach(number)
			_ = in.client.Forget(k.Request.Key)
		}
	}
	if in.same {
		return d.takeOver(in)
	}
	return d.replaceDifferent(in)
}

// takeOver goes on with the engine that lives.
func (d *Engines) takeOver(in *inheritance) error {
	w := d.pipeline.Workers()
	d.ports.SetTunnels()
	observe.Disarm(w)
	w.Connections().Watch(0, nil)
	d.pipeline.Resume()
	d.ports.TakeOver(w, in.attached)
	d.receive(w)
	if err := d.pipeline.AnswerUpcalls(); err != nil {
		return err
	}
	d.log.Info("took over the running engine", "pid", in.client.PID(), "megaflows", d.pipeline.Counts().Megaflows)
	return nil
}

// replaceDifferent starts a new engine in place of one that is not as it should
// be, or of none. Devices that were kept go on from where the old one was.
func (d *Engines) replaceDifferent(in *inheritance) error {
	if in.client != nil {
		if err := d.endOld(in.client); err != nil {
			return err
		}
		in.client.Close()
	}
	if in.memory != nil { // what it counted
		d.pipeline.Workers().MarkGone()
		<-d.guard.done
		d.pipeline.Abandon()
	}
	if in.counters != nil {
		d.pipeline.ForgetSlots()
	}
	client, w, err := d.spawn(in.memory)
	if in.memory != nil {
		in.memory.Close()
	}
	if err != nil {
		return err
	}
	d.adoptEngine(client, w, in.client != nil)
	d.log.Info("engine started", "pid", client.PID(), "cores", d.start.Cores)
	return nil
}

// spawn starts an engine with fresh memory, and the connections of old, if that
// is not nil.
func (d *Engines) spawn(old *engine.Memory) (Client, *workers.Workers, error) {
	memory, err := engine.NewMemory(d.start, old)
	if err != nil {
		return nil, nil, err
	}
	if old == nil {
		d.loadConnections(&memory.Connections)
	}
	client, err := d.launch()
	if err != nil {
		memory.Close()
		return nil, nil, err
	}
	if err = client.Start(d.start, memory); err == nil {
		var blob []byte
		if blob, err = json.Marshal(keptCounters{Build: buildID()}); err == nil {
			err = client.Keep(keepCounters, blob, []int{d.region.FD()})
		}
	}
	if err != nil {
		_ = client.Kill()
		client.Close()
		memory.Close()
		return nil, nil, fmt.Errorf("engine: start of the workers: %w", err)
	}
	return client, workers.New(memory, client.Gone()), nil
}

// loadConnections takes up the connections that the last stop saved.
func (d *Engines) loadConnections(table *conntrack.Memory) {
	n, saved, err := d.store.LoadConnections(table)
	switch {
	case err != nil:
		d.log.Warn("not all saved connections go on", "connections", n, "error", err)
	case saved:
		d.log.Info("saved connections go on", "connections", n)
	}
}

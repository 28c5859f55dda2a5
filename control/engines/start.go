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
func (es *Engines) Start(saved store.State) error {
	in, err := es.inherit()
	if err != nil {
		return err
	}
	region := in.counters
	if region == nil {
		if region, err = counters.New(es.start.Sizes.Cache.Megaflows); err != nil {
			return err
		}
	}
	es.region = region
	es.pipeline.Load(&saved, region, in.counters != nil)
	es.setEngine(in.client)
	if in.memory != nil {
		w := workers.New(in.memory, in.client.Gone())
		es.guard = es.guardEngine(w, in.client)
		es.pipeline.Inherit(w)
	}
	es.ports.Load(saved.Ports, saved.Names, in.ports)
	for number, k := range in.ports { // ports that were deleted while control died
		k.CloseFDs()
		if in.client != nil {
			_, _ = in.client.Detach(number)
			_ = in.client.Forget(k.Request.Key)
		}
	}
	if in.same {
		return es.takeOver(in)
	}
	return es.replaceDifferent(in)
}

// takeOver goes on with the engine that lives.
func (es *Engines) takeOver(in *inheritance) error {
	w := es.pipeline.Workers()
	es.ports.SetTunnels()
	observe.Disarm(w)
	w.Connections().Watch(0, nil)
	es.pipeline.Resume()
	es.ports.TakeOver(w, in.attached)
	es.receive(w)
	if err := es.pipeline.AnswerUpcalls(); err != nil {
		return err
	}
	es.log.Info("took over the running engine", "pid", in.client.PID(), "megaflows", es.pipeline.Counts().Megaflows)
	return nil
}

// replaceDifferent starts a new engine in place of one that is not as it should
// be, or of none. Devices that were kept go on from where the old one was.
func (es *Engines) replaceDifferent(in *inheritance) error {
	if in.client != nil {
		if err := es.endOld(in.client); err != nil {
			return err
		}
		in.client.Close()
	}
	if in.memory != nil { // what it counted
		es.pipeline.Workers().MarkGone()
		<-es.guard.done
		es.pipeline.Abandon()
	}
	if in.counters != nil {
		es.pipeline.ForgetSlots()
	}
	client, w, err := es.spawn(in.memory)
	if in.memory != nil {
		in.memory.Close()
	}
	if err != nil {
		return err
	}
	es.adoptEngine(client, w, in.client != nil)
	es.log.Info("engine started", "pid", client.PID(), "cores", es.start.Cores)
	return nil
}

// spawn starts an engine with fresh memory, and the connections of old, if that
// is not nil.
func (es *Engines) spawn(old *engine.Memory) (Client, *workers.Workers, error) {
	memory, err := engine.NewMemory(es.start, old)
	if err != nil {
		return nil, nil, err
	}
	if old == nil {
		es.loadConnections(&memory.Connections)
	}
	client, err := es.launch()
	if err != nil {
		memory.Close()
		return nil, nil, err
	}
	if err = client.Start(es.start, memory); err == nil {
		var blob []byte
		if blob, err = json.Marshal(keptCounters{Build: buildID()}); err == nil {
			err = client.Keep(keepCounters, blob, []int{es.region.FD()})
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
func (es *Engines) loadConnections(table *conntrack.Memory) {
	n, saved, err := es.store.LoadConnections(table)
	switch {
	case err != nil:
		es.log.Warn("not all saved connections go on", "connections", n, "error", err)
	case saved:
		es.log.Info("saved connections go on", "connections", n)
	}
}

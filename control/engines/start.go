// SPDX-License-Identifier: Apache-2.0

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

// Start starts the engine, the ports and the flows. A running engine continues
// without an interruption. The caller holds the configuration lock.
func (es *Engines) Start(saved store.State) error {
	defer es.trouble.Store(nil)
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
	es.macs.Load()
	for number, k := range in.ports { // kept devices that Load has not used belong to deleted ports
		k.CloseFDs()
		if in.client != nil {
			_, _ = in.client.Detach(number)
			_ = in.client.Forget(k.Request.Key)
		}
	}
	if in.unchanged {
		return es.takeOver(in)
	}
	return es.replaceDifferent(in)
}

func (es *Engines) takeOver(inherited *inheritance) error {
	w := es.pipeline.Workers()
	es.ports.SetTunnels()
	observe.Disarm(w)
	w.Connections().Watch(0, nil)
	es.pipeline.Resume()
	es.ports.TakeOver(w, inherited.attached)
	es.receive(w)
	if err := es.pipeline.AnswerUpcalls(); err != nil {
		return err
	}
	es.log.Info("took over the running engine", "pid", inherited.client.PID(), "megaflows", es.pipeline.Counts().Megaflows)
	return nil
}

// replaceDifferent replaces a running engine that has other settings by a new one. The
// devices that the old engine kept continue where they stopped.
func (es *Engines) replaceDifferent(inherited *inheritance) error {
	if inherited.client != nil {
		if err := es.endOld(inherited.client); err != nil {
			return err
		}
		inherited.client.Close()
	}
	if inherited.memory != nil { // credits the counts of the old engine
		es.pipeline.Workers().MarkGone()
		<-es.guard.done
		es.pipeline.Abandon()
	}
	if inherited.counters != nil {
		es.pipeline.ForgetSlots()
	}
	client, w, err := es.spawn(inherited.memory)
	if inherited.memory != nil {
		inherited.memory.Close()
	}
	if err != nil {
		return err
	}
	es.adoptEngine(client, w, inherited.client != nil)
	es.log.Info("engine started", "pid", client.PID(), "cores", es.start.Cores)
	return nil
}

// spawn starts an engine. If old is not nil, it copies the tracked connections of old.
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
	err = es.answered(client, func() error {
		if err := client.Start(es.start, memory); err != nil {
			return err
		}
		blob, err := json.Marshal(keptCounters{Build: buildID()})
		if err != nil {
			return err
		}
		return client.Keep(keepCounters, blob, []int{es.region.FD()})
	})
	if err != nil {
		_ = client.Kill()
		client.Close()
		memory.Close()
		return nil, nil, fmt.Errorf("engine: start of the workers: %w", err)
	}
	return client, workers.New(memory, client.Gone()), nil
}

func (es *Engines) loadConnections(table *conntrack.Memory) {
	n, saved, err := es.store.LoadConnections(table)
	switch {
	case err != nil:
		es.log.Warn("cannot restore all saved connections", "connections", n, "error", err)
	case saved:
		es.log.Info("saved connections restored", "connections", n)
	}
}

// SPDX-License-Identifier: Apache-2.0

package engines

import (
	"context"
	"encoding/json"
	"fmt"

	"weft/conntrack"
	"weft/control/change"
	"weft/control/counters"
	"weft/control/observe"
	"weft/control/ports"
	"weft/control/store"
	"weft/control/workers"
	"weft/engine"
)

// Start starts the engine, the ports and the flows from the saved state. A running engine of this
// build with these settings continues without an interruption. Any other running engine is replaced as
// soon as the next one has shown that it can start. Start waits until then, or until ctx ends.
func (es *Engines) Start(ctx context.Context, tx *change.Tx, saved store.State) error {
	defer es.trouble.Store(nil)
	in, err := es.inherit()
	if err != nil {
		return err
	}
	es.present.set(in.client)
	if in.client != nil && !in.unchanged && !in.client.Halted() { // a halted engine forwards nothing that a proof could protect
		if err := es.prove(ctx, in.client); err != nil {
			return err
		}
	}
	region := in.counters
	if region == nil {
		if region, err = counters.New(es.start.Sizes.Cache.Megaflows); err != nil {
			return err
		}
	}
	es.region = region
	es.pipeline.Load(tx, &saved, region, in.counters != nil)
	if in.memory != nil {
		w := workers.New(in.memory, in.client.Gone())
		es.guard = es.guardEngine(w, in.client)
		es.pipeline.Inherit(tx, w)
		if !in.unchanged {
			w.MarkGone() // the engine may be of another build, which has other commands
		}
	}
	es.ports.Load(tx, saved.Ports, saved.Names, in.ports)
	es.macs.Load()
	for number, k := range in.ports { // kept devices that Load has not used belong to deleted ports
		k.CloseFDs()
		if in.client != nil {
			_, _ = in.client.Detach(number)
			_ = in.client.Forget(ports.KeepKey(number))
			_ = in.client.Forget(ports.ExtrasKey(number))
		}
	}
	if in.unchanged {
		return es.takeOver(tx, in)
	}
	return es.replaceDifferent(ctx, tx, in)
}

func (es *Engines) takeOver(tx *change.Tx, inherited *inheritance) error {
	w := es.pipeline.Workers()
	es.ports.SetTunnels(tx)
	observe.Disarm(w)
	w.Connections().Watch(0, nil)
	es.pipeline.Resume(tx)
	es.ports.TakeOver(tx, w, inherited.attached)
	es.receive(w)
	if err := es.pipeline.AnswerUpcalls(es.ports.Fault); err != nil {
		return err
	}
	es.log.Info("took over the running engine", "pid", inherited.client.PID(), "megaflows", es.pipeline.Counts().Megaflows)
	return nil
}

// spawn starts an engine on new memory, which gets the tracked connections of oldMemory, unless that
// is nil.
func (es *Engines) spawn(tx *change.Tx, oldMemory *engine.Memory) (Client, *workers.Workers, error) {
	memory, err := es.newMemory(oldMemory)
	if err != nil {
		return nil, nil, err
	}
	return es.startOn(tx, memory)
}

// newMemory makes the memory of an engine. It has the tracked connections of oldMemory or, if that is
// nil, the saved ones.
func (es *Engines) newMemory(oldMemory *engine.Memory) (*engine.Memory, error) {
	memory, err := engine.NewMemory(es.start, oldMemory)
	if err == nil && oldMemory == nil {
		es.loadConnections(&memory.Connections)
	}
	return memory, err
}

// startOn starts an engine on memory, which it owns, even if it fails.
func (es *Engines) startOn(tx *change.Tx, memory *engine.Memory) (Client, *workers.Workers, error) {
	client, err := es.launch(tx)
	if err != nil {
		memory.Close()
		return nil, nil, err
	}
	err = es.answered(client, func() error {
		if err := client.Start(es.start, memory); err != nil {
			return err
		}
		blob, err := json.Marshal(keptCounters{Build: buildID(), Layout: workers.Layout()})
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

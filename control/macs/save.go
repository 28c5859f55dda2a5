// SPDX-License-Identifier: Apache-2.0

package macs

import (
	"context"
	"time"

	"weft/control/loop"
	"weft/internal/clock"
	"weft/openflow/fdb"
)

const (
	// interval of saves while addresses change; a killed process loses the changes
	// since the last save
	saveAfter = 10 * time.Second
	// interval of saves while no address changes; it keeps the saved ages fresh
	saveAgesAfter = time.Minute
)

// Run saves the addresses periodically until ctx ends. After a restart, the pipeline
// restores addresses learned after the last save from the workers' megaflows.
func (ms *MACs) Run(ctx context.Context) {
	var generation uint64
	var at time.Time
	failed := false
	for loop.Sleep(ctx, saveAfter) {
		now := ms.table.Generation()
		if now == generation && (ms.table.Len() == 0 || time.Since(at) < saveAgesAfter) {
			continue
		}
		generation, at = now, time.Now()
		err := ms.Save()
		if err != nil && !failed {
			ms.log.Error("learned addresses cannot be saved: after a restart, frames to them are flooded", "error", err)
		}
		failed = err != nil
	}
}

// Save saves the learned addresses for the next control process.
func (ms *MACs) Save() error {
	ports := map[uint32]string{}
	for _, info := range ms.pipeline.View().Ports() {
		ports[info.At()] = info.Name
	}
	data, err := ms.table.Save(ports)
	if err != nil {
		return err
	}
	return ms.store.SaveAddresses(data)
}

// Load restores the saved addresses at startup, after the ports. Addresses that cannot
// be read are learned again from frames.
func (ms *MACs) Load() {
	view, n := ms.pipeline.View(), 0
	data, err := ms.store.LoadAddresses()
	if err == nil {
		n, err = ms.table.Restore(data, clock.Monotonic(), func(port string, l *fdb.Learn) bool {
			info, ok := view.PortAt(l.Port)
			return ok && info.Name == port && info.MayTeach(l)
		})
	}
	if err != nil {
		ms.log.Warn("learned addresses cannot be restored, they are learned again", "error", err)
	}
	if n > 0 {
		ms.log.Info("learned addresses go on", "addresses", n)
	}
}

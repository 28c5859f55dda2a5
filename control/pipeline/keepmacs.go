// SPDX-License-Identifier: Apache-2.0

package pipeline

import (
	"context"
	"time"

	"weft/control/loop"
	"weft/internal/clock"
	"weft/openflow"
)

// Without this file of learned addresses, a restart would flood the frames of silent
// machines to every port. recoverMegaflows adds addresses that were learned after the
// last save.

const (
	// interval of saves while addresses change; a killed process loses these changes
	saveMACsAfter = 10 * time.Second
	// interval of saves while no address changes, so that saved ages stay fresh
	saveAgesAfter = time.Minute
)

func (pl *Pipeline) keepMACs(ctx context.Context) {
	var generation uint64
	var at time.Time
	failed := false
	for loop.Sleep(ctx, saveMACsAfter) {
		now := pl.macs.Generation()
		if now == generation && (pl.macs.Len() == 0 || time.Since(at) < saveAgesAfter) {
			continue
		}
		generation, at = now, time.Now()
		err := pl.SaveMACs()
		if err != nil && !failed {
			pl.log.Error("learned addresses cannot be saved: after a restart, frames to them are flooded", "error", err)
		}
		failed = err != nil
	}
}

// SaveMACs saves the learned addresses for the next control process.
func (pl *Pipeline) SaveMACs() error {
	ports := map[uint32]string{}
	for _, info := range pl.View().infos {
		ports[info.No] = info.Name
	}
	data, err := pl.macs.Save(ports)
	if err != nil {
		return err
	}
	return pl.store.SaveAddresses(data)
}

// LoadMACs restores the saved addresses at startup, after the ports. Addresses that
// cannot be read are learned again.
func (pl *Pipeline) LoadMACs() {
	view, n := pl.View(), 0
	data, err := pl.store.LoadAddresses()
	if err == nil {
		n, err = pl.macs.Restore(data, clock.Monotonic(), func(port string, l *openflow.Learn) bool {
			info, ok := view.byNo[l.Port]
			return ok && info.Name == port && info.MayTeach(l)
		})
	}
	if err != nil {
		pl.log.Warn("learned addresses cannot be restored, they are learned again", "error", err)
	}
	if n > 0 {
		pl.log.Info("learned addresses go on", "addresses", n)
	}
}

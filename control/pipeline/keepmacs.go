// SPDX-License-Identifier: Apache-2.0

package pipeline

import (
	"bytes"
	"context"
	"encoding/gob"
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

// savedMACs is the content of the file, in gob.
type savedMACs struct {
	// Ports has the port names by number. An address of a renamed port is not
	// restored.
	Ports map[uint32]string
	MACs  []openflow.SavedMAC
}

func (pl *Pipeline) keepMACs(ctx context.Context) {
	var generation uint64
	var at time.Time
	failed := false
	for loop.Sleep(ctx, saveMACsAfter) {
		now := pl.macs.generation()
		if now == generation && (pl.macs.len() == 0 || time.Since(at) < saveAgesAfter) {
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
	saved := savedMACs{Ports: map[uint32]string{}, MACs: pl.macs.saved()}
	for _, info := range pl.View().infos {
		saved.Ports[info.No] = info.Name
	}
	var file bytes.Buffer
	if err := gob.NewEncoder(&file).Encode(&saved); err != nil {
		return err
	}
	return pl.store.SaveAddresses(file.Bytes())
}

// LoadMACs restores the saved addresses at startup, after the ports. Addresses that
// cannot be read are learned again.
func (pl *Pipeline) LoadMACs() {
	data, err := pl.store.LoadAddresses()
	var saved savedMACs
	if err == nil && data != nil {
		err = gob.NewDecoder(bytes.NewReader(data)).Decode(&saved)
	}
	if err != nil {
		pl.log.Warn("learned addresses cannot be restored, they are learned again", "error", err)
		return
	}
	view, fit := pl.View(), saved.MACs[:0]
	for _, s := range saved.MACs {
		if info, ok := view.byNo[s.Learn.Port]; ok && saved.Ports[info.No] == info.Name && info.MayTeach(&s.Learn) {
			fit = append(fit, s)
		}
	}
	if n := pl.macs.restore(fit, clock.Monotonic()); n > 0 {
		pl.log.Info("learned addresses go on", "addresses", n)
	}
}

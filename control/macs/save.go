// SPDX-License-Identifier: Apache-2.0

package macs

import (
	"bytes"
	"context"
	"encoding/gob"
	"time"

	"weft/control/loop"
	"weft/internal/clock"
	"weft/openflow/fdb"
)

const (
	// saveAfter is the interval of saves while addresses change. A killed process loses the changes
	// since the last save.
	saveAfter = 10 * time.Second
	// saveAgesAfter is the interval of saves while no address changes. These saves keep the saved
	// ages fresh.
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
	data, err := encode(ports, ms.table.Saved())
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
		var fitting []fdb.Saved
		fitting, err = decode(data, func(port string, l *fdb.Learn) bool {
			info, ok := view.PortAt(l.Port)
			return ok && info.Name == port && info.MayTeach(l)
		})
		n = ms.table.Restore(fitting, clock.Monotonic())
	}
	if err != nil {
		ms.log.Warn("learned addresses cannot be restored, they are learned again", "error", err)
	}
	if n > 0 {
		ms.log.Info("learned addresses go on", "addresses", n)
	}
}

// saved is the form of the learned addresses on the disk, in gob encoding.
type saved struct {
	// Ports maps port numbers to names. The addresses of a renamed port are not
	// restored.
	Ports map[uint32]string
	MACs  []fdb.Saved
}

func encode(ports map[uint32]string, macs []fdb.Saved) ([]byte, error) {
	var file bytes.Buffer
	err := gob.NewEncoder(&file).Encode(&saved{Ports: ports, MACs: macs})
	return file.Bytes(), err
}

// decode returns the saved addresses for which fits returns true. fits gets the name that
// the port had at the time of the save. data may be nil.
func decode(data []byte, fits func(port string, l *fdb.Learn) bool) (fitting []fdb.Saved, err error) {
	if data == nil {
		return nil, nil
	}
	var s saved
	if err := gob.NewDecoder(bytes.NewReader(data)).Decode(&s); err != nil {
		return nil, err
	}
	fitting = s.MACs[:0]
	for _, m := range s.MACs {
		if name, ok := s.Ports[m.Learn.Port]; ok && fits(name, &m.Learn) {
			fitting = append(fitting, m)
		}
	}
	return fitting, nil
}

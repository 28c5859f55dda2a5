// SPDX-License-Identifier: Apache-2.0

// Package macs lists and flushes MAC addresses for the API, and saves the learned addresses on the disk.
// Without the saved addresses, a restart would flood frames to silent machines to every port.
//
// openflow/fdb has the addresses and their lock. This package has no lock of its own. Flush takes the
// configuration lock, which allows one change of the switch at a time. Save and Load may wait for the
// disk; Run calls Save without any lock.
package macs

import (
	"cmp"
	"log/slog"
	"slices"
	"time"

	"weft/api"
	"weft/control/change"
	"weft/control/pipeline"
	"weft/internal/clock"
	"weft/openflow"
	"weft/openflow/fdb"
)

// Store saves the learned addresses. Its methods may wait for the disk.
type Store interface {
	SaveAddresses(data []byte) error
	// LoadAddresses returns the data of the last SaveAddresses since the machine's
	// boot, or nil.
	LoadAddresses() ([]byte, error)
}

// MACs answers requests about a pipeline's addresses, and saves the learned ones.
type MACs struct {
	configuration *change.Configuration
	pipeline      *pipeline.Pipeline
	table         *fdb.Table
	store         Store
	log           *slog.Logger
}

// New returns the MACs for the addresses of the pipeline pl. Flush takes the lock of configuration.
func New(configuration *change.Configuration, pl *pipeline.Pipeline, store Store, log *slog.Logger) *MACs {
	return &MACs{configuration: configuration, pipeline: pl, table: pl.Addresses(), store: store, log: log}
}

// List returns the learned and declared addresses of a bridge, sorted by VLAN, address and
// VNI.
func (ms *MACs) List(bridge uint8) []api.MAC {
	entries, now := ms.table.Entries(), clock.Monotonic()
	entries = slices.DeleteFunc(entries, func(e fdb.Entry) bool { return e.Segment.Bridge() != bridge })
	slices.SortFunc(entries, func(a, b fdb.Entry) int {
		return cmp.Or(cmp.Compare(a.VLAN, b.VLAN), cmp.Compare(a.MAC, b.MAC), cmp.Compare(a.Segment, b.Segment))
	})
	view := ms.pipeline.View().Of(bridge)
	list := make([]api.MAC, 0, len(entries))
	for _, e := range entries {
		if tunnel, ok := view.CentralTunnel(); ok && e.Declared && e.Remote.IsValid() {
			e.Port = tunnel.At()
		}
		name, _ := view.PortName(e.Port)
		m := api.MAC{
			PortNumber: view.InFlows(e.Port), Port: name, VLAN: e.VLAN, MAC: openflow.FormatEthernet(e.MAC),
			AgeS: time.Duration(now - min(now, e.SeenNS)).Seconds(), Declared: e.Declared,
		}
		if e.Declared {
			m.AgeS = 0
		}
		if vni, ok := e.Segment.VNI(); ok {
			m.VNI = &vni
		}
		if e.Remote.IsValid() {
			m.Remote = e.Remote.String()
		}
		list = append(list, m)
	}
	return list
}

// Flush forgets the learned addresses of the named port, or of all ports of the bridge if port is
// empty. When it returns, no frame uses them.
func (ms *MACs) Flush(bridge uint8, port string) (api.MACsFlushed, error) {
	return change.Result(ms.configuration, func(tx *change.Tx) (api.MACsFlushed, error) {
		view := ms.pipeline.View().Of(bridge) // the view changes only under the configuration lock
		flush := func() (n int) {
			for _, info := range view.Ports() {
				n += ms.table.Flush(info.At())
			}
			return n
		}
		if port != "" {
			no, ok := view.DatapathByName(port)
			if !ok {
				return api.MACsFlushed{}, view.NoPort(port)
			}
			flush = func() int { return ms.table.Flush(no) }
		}
		// PullCounts first counts the frames that the workers have forwarded so far. If they were counted
		// later, the switch would learn the flushed addresses from them again.
		ms.pipeline.PullCounts(tx)
		n := flush()
		if n > 0 {
			ms.pipeline.RevalidateAddresses(tx)
			tx.At(change.Save, ms, func() error { // without this save, a restart would restore the flushed addresses
				if err := ms.Save(); err != nil {
					ms.log.Error("learned addresses cannot be saved", "error", err)
				}
				return nil
			})
		}
		return api.MACsFlushed{Flushed: n}, nil
	})
}

// SPDX-License-Identifier: Apache-2.0

package pipeline

import (
	"cmp"
	"slices"
	"time"

	"weft/api"
	"weft/control/loop"
	"weft/internal/clock"
	"weft/openflow"
)

// ListMACs returns the learned addresses, sorted by VLAN, address and VNI.
func (pl *Pipeline) ListMACs() []api.MAC {
	entries, now := pl.macs.Entries(), clock.Monotonic()
	slices.SortFunc(entries, func(a, b openflow.MACEntry) int {
		return cmp.Or(cmp.Compare(a.VLAN, b.VLAN), cmp.Compare(a.MAC, b.MAC), cmp.Compare(a.Segment, b.Segment))
	})
	pl.mu.RLock()
	view := pl.view
	pl.mu.RUnlock()
	list := make([]api.MAC, 0, len(entries))
	for _, e := range entries {
		if e.Declared && e.Remote.IsValid() && view.centralTunnel != nil {
			e.Port = view.centralTunnel.No
		}
		name, _ := view.PortName(e.Port)
		m := api.MAC{
			PortNumber: e.Port, Port: name, VLAN: e.VLAN, MAC: openflow.FormatEthernet(e.MAC),
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

// FlushMACs forgets the addresses of the named port, or all if name is empty. After
// it, no frame uses them.
func (pl *Pipeline) FlushMACs(port string) (api.MACsFlushed, error) {
	pl.change.Lock()
	defer pl.change.Unlock()
	flush := pl.macs.FlushAll
	if port != "" {
		no, ok := pl.view.PortByName(port) // changes only under the lock of changes
		if !ok {
			return api.MACsFlushed{}, pl.view.NoPort(port)
		}
		flush = func() int { return pl.macs.Flush(no) }
	}
	pl.mu.Lock()
	pl.pullAll() // counts earlier frames, so that the flushed addresses are not learned again from them
	pl.mu.Unlock()
	n := flush()
	if n > 0 {
		pl.revalidateAddresses()
		if err := pl.SaveMACs(); err != nil { // a restart would restore the flushed addresses from the old file
			pl.log.Error("learned addresses cannot be saved", "error", err)
		}
	}
	return api.MACsFlushed{Flushed: n}, nil
}

// learn stores an address. The caller may hold any lock except macs.mu.
func (pl *Pipeline) learn(l openflow.Learn, nowNS uint64) {
	if pl.macs.Learn(l, nowNS) {
		pl.macsChanged()
	}
}

// macsChanged makes maintain revalidate the megaflows of changed addresses.
func (pl *Pipeline) macsChanged() { loop.Notify(pl.macsStale) }

// SPDX-License-Identifier: Apache-2.0

package pipeline

import (
	"cmp"
	"net/netip"
	"slices"
	"sync"
	"time"

	"weft/api"
	"weft/control/limits"
	"weft/control/loop"
	"weft/internal/clock"
	"weft/openflow"
)

// ListMACs returns the learned addresses, sorted by VLAN, address and VNI.
func (pl *Pipeline) ListMACs() []api.MAC {
	entries, now := pl.macs.entries(), clock.Monotonic()
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
	flush := pl.macs.flushAll
	if port != "" {
		no, ok := pl.view.PortByName(port) // changes only under the lock of changes
		if !ok {
			return api.MACsFlushed{}, pl.view.NoPort(port)
		}
		flush = func() int { return pl.macs.flush(no) }
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
	if pl.macs.learn(l, nowNS) {
		pl.macsChanged()
	}
}

// macsChanged makes maintain revalidate the megaflows of changed addresses.
func (pl *Pipeline) macsChanged() { loop.Notify(pl.macsStale) }

// macs is the table of learned addresses. No lock is taken under macs.mu.
type macs struct {
	mu    sync.RWMutex
	table *openflow.MACTable
}

// maxMACs limits the learned addresses. At the limit the port with the most addresses
// loses one (openflow/macquota.go).
const maxMACs = 65536

func newMACs() *macs {
	return &macs{table: openflow.NewMACTable(maxMACs, openflow.DefaultMACAge)}
}

func (m *macs) generation() uint64 {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.table.Generation()
}

func (m *macs) learn(l openflow.Learn, nowNS uint64) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.table.Learn(l, nowNS)
}

func (m *macs) lookup(s openflow.Segment, vlan uint16, mac uint64) (uint32, bool) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.table.Lookup(s, vlan, mac)
}

func (m *macs) vtep(s openflow.Segment, vlan uint16, mac uint64) netip.Addr {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.table.VTEP(s, vlan, mac)
}

func (m *macs) moved(l *openflow.Learn) bool {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.table.Moved(l)
}

func (m *macs) announced(s openflow.Segment, vlan uint16, mac uint64, port uint32) bool {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.table.Announced(s, vlan, mac, port)
}

func (m *macs) neighbour(s openflow.Segment, vlan uint16, ip netip.Addr) (uint64, bool) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.table.Neighbour(s, vlan, ip)
}

func (m *macs) expire(nowNS uint64) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.table.Expire(nowNS) > 0
}

func (m *macs) flush(port uint32) int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.table.Flush(port)
}

// forget removes the addresses of a deleted port.
func (m *macs) forget(port uint32) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.table.Forget(port)
}

func (m *macs) declare(ports []openflow.PortInfo) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.table.Declare(openflow.Declares(ports))
}

// limitRows emits a row for each port and a total. An address is refused if the port
// learns too fast, or if another port owns the address.
func (m *macs) limitRows(emit func(limits.Row)) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	var learnt, moves uint64
	for _, s := range m.table.Shares() {
		r := &s.Refused
		refused := r.Declared + r.OtherVNI + r.Moves
		learnt += r.Rate
		moves += refused
		if s.Used != 0 || r.Rate != 0 {
			emit(limits.Row{Name: "macs", Unit: "entries", Holder: limits.Port(s.Port), Used: uint64(s.Used),
				Guarantee: uint64(m.table.Guarantee()), Limit: uint64(m.table.PortLimit()), Refused: r.Rate})
		}
		if refused != 0 {
			emit(limits.Row{Name: "mac_moves", Unit: "moves", Holder: limits.Port(s.Port), Refused: refused})
		}
	}
	emit(limits.Row{Name: "macs", Unit: "entries", Holder: limits.All(), Used: uint64(m.table.Len()), Limit: maxMACs, Refused: learnt})
	emit(limits.Row{Name: "mac_moves", Unit: "moves", Holder: limits.All(), Refused: moves})
}

func (m *macs) flushAll() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.table.FlushAll()
}

func (m *macs) entries() []openflow.MACEntry {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.table.Entries()
}

func (m *macs) saved() []openflow.SavedMAC {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.table.Saved()
}

func (m *macs) restore(list []openflow.SavedMAC, nowNS uint64) int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.table.Restore(list, nowNS)
}

func (m *macs) len() int {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.table.Len()
}

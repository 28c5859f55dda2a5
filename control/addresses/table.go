// SPDX-License-Identifier: Apache-2.0

// Package addresses has the MAC and IP addresses that the action normal has learned,
// and those that weft-central has declared: openflow.MACTable with a lock, its limits
// and its saved form. Its lock is the last one: no other lock is taken while it is held.
package addresses

import (
	"sync"

	"weft/openflow"
)

// maxMACs is the limit of learned addresses. At the limit the port with the most
// addresses loses one of them, see openflow/macquota.go.
const maxMACs = 65536

// Table is an openflow.MACTable that goroutines may share. Methods without a comment
// are those of openflow.MACTable under the lock.
type Table struct {
	mu    sync.RWMutex
	table *openflow.MACTable
}

// New returns an empty table.
func New() *Table {
	return &Table{table: openflow.NewMACTable(maxMACs, openflow.DefaultMACAge)}
}

// Change is a change of declared networks.
type Change struct {
	// Networks has the new settings of networks by segment, which is the VNI plus
	// one. A nil value removes the network.
	Networks  map[openflow.Segment]*openflow.Network
	Addresses []openflow.NetAddress
	Removed   []openflow.RemovedNetAddress
}

// Change changes the declared networks. It returns the number of addresses that it
// leaves out because the limit openflow.MaxNetAddresses was reached.
func (t *Table) Change(c *Change) (left int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for s, network := range c.Networks {
		t.table.SetNetwork(s, network)
	}
	return t.table.SetNetAddresses(c.Addresses, c.Removed)
}

// Declare sets the addresses that ports may use.
func (t *Table) Declare(ports []openflow.PortInfo) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.table.Declare(openflow.Declares(ports))
}

func (t *Table) Learn(l openflow.Learn, nowNS uint64) (changed bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.table.Learn(l, nowNS)
}

func (t *Table) Moved(l *openflow.Learn) bool {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.table.Moved(l)
}

// Expire removes old addresses and reports whether it removed any.
func (t *Table) Expire(nowNS uint64) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.table.Expire(nowNS) > 0
}

func (t *Table) Flush(port uint32) (flushed int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.table.Flush(port)
}

func (t *Table) FlushAll() (flushed int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.table.FlushAll()
}

// Forget removes the addresses of a deleted port.
func (t *Table) Forget(port uint32) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.table.Forget(port)
}

func (t *Table) Generation() uint64 {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.table.Generation()
}

func (t *Table) TakeChanges() openflow.AddressChanges {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.table.TakeChanges()
}

func (t *Table) Touch(refs []openflow.AddressRef) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.table.Touch(refs)
}

func (t *Table) Entries() []openflow.MACEntry {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.table.Entries()
}

func (t *Table) Len() int {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.table.Len()
}

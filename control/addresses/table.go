// SPDX-License-Identifier: Apache-2.0

// Package addresses has the MAC addresses that the switch has learned, and the MAC and
// IP addresses that weft-central has declared. It is an fdb.Table with a lock.
// No other lock is taken under this lock.
package addresses

import (
	"sync"

	"weft/openflow/fdb"
	"weft/openflow/xlate"
)

// maxMACs limits the learned addresses. At the limit the port with the most addresses
// loses one (openflow/fdb/quota.go).
const maxMACs = 65536

// Table is an fdb.Table with a lock. Methods without a comment do the same as
// those of fdb.Table.
type Table struct {
	mu    sync.RWMutex
	table *fdb.Table
}

// New returns an empty table.
func New() *Table {
	return &Table{table: fdb.New(maxMACs, fdb.DefaultAge)}
}

// Change is a change of declared networks.
type Change struct {
	// RemovedNetworks lose their settings and addresses before the rest of the change.
	RemovedNetworks []fdb.Segment
	// Networks maps segments (VNI plus one) to new settings.
	Networks  map[fdb.Segment]*fdb.Network
	Addresses []fdb.NetAddress
	Removed   []fdb.RemovedNetAddress
}

// Change changes the declared networks. It refuses addresses beyond
// fdb.MaxNetAddresses, and returns their number.
func (t *Table) Change(c *Change) (refused int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, s := range c.RemovedNetworks {
		t.table.SetNetwork(s, nil)
	}
	for s, network := range c.Networks {
		t.table.SetNetwork(s, network)
	}
	return t.table.SetNetAddresses(c.Addresses, c.Removed)
}

// Declare sets the addresses that ports may use.
func (t *Table) Declare(ports []xlate.PortInfo) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.table.Declare(xlate.Declares(ports))
}

func (t *Table) Learn(l fdb.Learn, nowNS uint64) (changed bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.table.Learn(l, nowNS)
}

func (t *Table) Moved(l *fdb.Learn) bool {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.table.Moved(l)
}

// Expire removes old addresses. It returns true if it has removed any.
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

func (t *Table) TakeChanges() fdb.Changes {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.table.TakeChanges()
}

func (t *Table) Touch(refs []fdb.Ref) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.table.Touch(refs)
}

func (t *Table) Entries() []fdb.Entry {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.table.Entries()
}

func (t *Table) Len() int {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.table.Len()
}

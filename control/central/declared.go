// SPDX-License-Identifier: Apache-2.0

package central

import (
	"net/netip"
	"sync"
	"sync/atomic"

	"weft/control/agent"
	"weft/control/change"
	"weft/control/loop"
	"weft/openflow/fdb"
)

// Declared has the addresses that weft-central has declared for this switch's ports. It also passes the
// ports' events to the agent. The pipeline and the ports call it, so it is made before them.
type Declared struct {
	events atomic.Pointer[agent.Events] // nil: Run has not begun, and events are dropped
	moved  chan struct{}                // wakes up Run after a change of ports

	mu   sync.Mutex // taken last
	seen []string   // names of the ports whose first frame has not been reported yet

	// local has the declared addresses behind this switch's ports. It stores port
	// names, because a port number may change. The configuration lock guards it.
	local map[addressKey]*localAddress
}

type addressKey struct {
	segment fdb.Segment
	mac     uint64
}

type localAddress struct {
	fdb.NetAddress
	port string
}

// NewDeclared returns a Declared without addresses.
func NewDeclared() *Declared {
	return &Declared{moved: make(chan struct{}, 1), local: map[addressKey]*localAddress{}}
}

// Seen implements pipeline.Declared. The pipeline holds its lock during the call, so
// Seen only wakes up Run, which informs the agent.
func (d *Declared) Seen(port string) {
	d.mu.Lock()
	d.seen = append(d.seen, port)
	d.mu.Unlock()
	loop.Notify(d.moved)
}

// takeSeen returns the ports whose first frame has not been reported yet, and forgets them.
func (d *Declared) takeSeen() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	seen := d.seen
	d.seen = nil
	return seen
}

// Ask implements pipeline.Declared. The pipeline holds no lock during the call.
func (d *Declared) Ask(port string, vni uint32, mac uint64, ip netip.Addr) bool {
	e := d.events.Load()
	return e != nil && (*e).Ask(port, vni, mac, ip)
}

// Renumber implements ports.Declared: it stores the present numbers of the ports with local
// addresses, and returns the addresses whose port has another number than before.
func (d *Declared) Renumber(_ *change.Tx, numbers map[string]uint32) (moved []fdb.NetAddress) {
	loop.Notify(d.moved)
	for _, a := range d.local {
		if no := numbers[a.port]; no != a.Port {
			a.Port = no
			moved = append(moved, a.NetAddress)
		}
	}
	return moved
}

// SPDX-License-Identifier: Apache-2.0

// Package share divides a limited number of units, such as megaflows, among ports. A
// port may have at most as many units as are still free: a single port can take half
// of the units, two ports a third each. A few units are reserved for each port, so
// that many ports leave some for the last ones.
package share

const (
	// Holders is the number of ports for which units are reserved.
	Holders = 1024
	// keptPart: 1/keptPart of all units is reserved for ports.
	keptPart = 8
)

// Ports has the number of units of each port. It is not safe for concurrent use.
type Ports struct {
	limit, floor int               // number of all units, and of units reserved for each port
	count        int               // number of units in use
	secured      int               // number of reserved units in use
	own          map[uint32]int    // number of units by port
	refused      map[uint32]uint64 // number of refusals by port
}

// New returns an empty division of limit units.
func New(limit int) *Ports {
	return &Ports{limit: limit, floor: limit / keptPart / Holders, own: map[uint32]int{}, refused: map[uint32]uint64{}}
}

// Limit returns the number of all units.
func (p *Ports) Limit() int { return p.limit }

// Count returns the number of units in use.
func (p *Ports) Count() int { return p.count }

// Own returns the number of units that a port has.
func (p *Ports) Own(port uint32) int { return p.own[port] }

// MayHave reports whether a port may have n more units.
func (p *Ports) MayHave(port uint32, n int) bool {
	has := p.own[port]
	if has+n <= p.floor {
		return p.count+n <= p.limit
	}
	return has+n <= p.limit-p.count-p.reserved(has)
}

// reserved returns the number of free units that are reserved for other ports. The
// argument used is the number of units of the requesting port.
func (p *Ports) reserved(used int) int {
	return max(p.floor*(Holders-1)-p.secured+min(used, p.floor), 0)
}

// Refuse counts a refused request of a port.
func (p *Ports) Refuse(port uint32) { p.refused[port]++ }

// Add adds n, possibly negative, to a port's units. It does not check limits, because
// a port may have exceeded them before a restart.
func (p *Ports) Add(port uint32, n int) {
	was := p.own[port]
	is := was + n
	if is == 0 {
		delete(p.own, port)
	} else {
		p.own[port] = is
	}
	p.count += n
	p.secured += min(is, p.floor) - min(was, p.floor)
}

// Use is one port's use of the units.
type Use struct {
	// Used is the number of the port's units, Guarantee the number reserved for it,
	// and Limit the number that it could have now.
	Used, Guarantee, Limit int
	// Refused is the number of the port's refused requests.
	Refused uint64
}

// Each calls visit for each port with units or refused requests. It returns the
// number of refused requests of all ports.
func (p *Ports) Each(visit func(port uint32, u Use)) (refused uint64) {
	use := func(port uint32) {
		has := p.own[port]
		most := has + max((p.limit-p.count-p.reserved(has)-has+1)/2, 0)
		visit(port, Use{has, p.floor, max(most, min(p.floor, has+p.limit-p.count)), p.refused[port]})
	}
	for port := range p.own {
		use(port)
	}
	for port, n := range p.refused {
		if refused += n; p.own[port] == 0 {
			use(port)
		}
	}
	return refused
}

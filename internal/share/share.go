// SPDX-License-Identifier: Apache-2.0

// Package share divides a limited number of units, such as megaflows, among ports. A port may have at
// most as many units as stay free: one port alone can take half of the units, each of two ports a
// third. In addition a few units are reserved for each port, so that the last of many ports still gets
// some.
package share

const (
	// holders is the number of ports for which a part of the resource is reserved.
	holders = 1024
	// keptPart is the divisor for the reserve: 1/keptPart of the resource is reserved, in equal parts for
	// each port.
	keptPart = 8
)

// Ports counts how many units of a limited resource, such as megaflows, each port has. Only one goroutine
// may use it at a time.
type Ports struct {
	limit, floor int               // number of all units, and number of units reserved for each port
	count        int               // number of units in use
	secured      int               // number of reserved units in use
	own          map[uint32]int    // number of units by port
	refused      map[uint32]uint64 // number of refusals by port
}

// New returns a Ports for a resource of limit units, none of them in use.
func New(limit int) *Ports {
	return &Ports{limit: limit, floor: limit / keptPart / holders, own: map[uint32]int{}, refused: map[uint32]uint64{}}
}

// Limit returns the number of all units of the resource.
func (p *Ports) Limit() int { return p.limit }

// Count returns the number of units that are in use.
func (p *Ports) Count() int { return p.count }

// Own returns the number of units of the resource that a port has.
func (p *Ports) Own(port uint32) int { return p.own[port] }

// MayHave reports whether the port may get n more units of the resource.
func (p *Ports) MayHave(port uint32, n int) bool {
	has := p.own[port]
	if has+n <= p.floor {
		return p.count+n <= p.limit
	}
	return has+n <= p.limit-p.count-p.reserved(has)
}

// reserved returns the number of free units that are reserved for ports other than the one that asks.
// used is the number of units that the asking port has.
func (p *Ports) reserved(used int) int {
	return max(p.floor*(holders-1)-p.secured+min(used, p.floor), 0)
}

// Refuse counts a refused request of the port.
func (p *Ports) Refuse(port uint32) { p.refused[port]++ }

// Add gives a port n more units of the resource; n may be negative. It does not check limits, because the
// ports may have had more units before a restart.
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

// Use says how much of the resource one port uses.
type Use struct {
	// Used is the number of units that the port has. Guarantee is the number reserved
	// for the port. Limit is the number that the port could have now.
	Used, Guarantee, Limit int
	// Refused is the number of the port's refused requests.
	Refused uint64
}

// Each calls visit for each port that has units of the resource or refused requests. It returns the sum of
// the refused requests.
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

// Package share divides a number of things among ports, so that none keeps another
// from what it needs. A port may have as many as it leaves free: one alone gets half,
// two a third each. As ports that take in turn what they leave free would leave nothing
// in the end, a few are kept for each port.
package share

const (
	// Holders bounds the ports for which some are kept.
	Holders = 1024
	// keptPart: one part in this of all is kept for ports that have few or none.
	keptPart = 8
)

// Ports says which port has how many. Its owner guards it.
type Ports struct {
	limit, floor int
	count        int
	secured      int // of what is kept, what ports have
	own          map[uint32]int
	refused      map[uint32]uint64
}

// New divides limit things.
func New(limit int) *Ports {
	return &Ports{limit: limit, floor: limit / keptPart / Holders, own: map[uint32]int{}, refused: map[uint32]uint64{}}
}

// Limit is how many there are, Count how many are in use, and Own how many of those a
// port has.
func (p *Ports) Limit() int          { return p.limit }
func (p *Ports) Count() int          { return p.count }
func (p *Ports) Own(port uint32) int { return p.own[port] }

// MayHave tells whether a port may have n more.
func (p *Ports) MayHave(port uint32, n int) bool {
	has := p.own[port]
	if has+n <= p.floor {
		return p.count+n <= p.limit
	}
	return has+n <= p.limit-p.count-p.kept(has)
}

// kept is how many are kept for others than a port that has some.
func (p *Ports) kept(has int) int {
	return max(p.floor*(Holders-1)-p.secured+min(has, p.floor), 0)
}

// Refuse counts that a port did not get what it asked for.
func (p *Ports) Refuse(port uint32) { p.refused[port]++ }

// Add gives a port n more or, if n is negative, takes some back. What it had before
// this process counted may be more than it may have.
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

// Use is what one port has, is guaranteed, may have at the most now, and was refused.
type Use struct {
	Used, Guarantee, Limit int
	Refused                uint64
}

// Each calls visit for each port that has some or was refused, and returns how often
// ports were refused in all.
func (p *Ports) Each(visit func(port uint32, u Use)) (refused uint64) {
	use := func(port uint32) {
		has := p.own[port]
		most := has + max((p.limit-p.count-p.kept(has)-has+1)/2, 0)
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

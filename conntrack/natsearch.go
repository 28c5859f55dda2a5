package conntrack

// The search for a free translation. It goes on under the table's lock, and where most
// translations are in use it is long. So the queue that a frame came from is charged
// for the tries beyond a few (NATTries, datapath/fair.go), a worker spends a bounded
// part of its time on them, and where none is free the holder that has most of those
// tried gives one up, unless that is the asking one.

const (
	// freeNATTries are the tries of a frame that cost nothing.
	freeNATTries = 16
	// NATTryNS is what a further one costs, about (BenchmarkNATExhausted).
	NATTryNS = 60
	// natTimeShare: one part in this of a worker's time goes to further tries. A worker
	// that owes more than maxNATDebtNS makes no further ones.
	natTimeShare = 16
	maxNATDebtNS = 1_000_000
	// natHolders is how many holders are told apart among the tries of a frame.
	natHolders = 8
)

// natSearch is the search of the frame in hand, and what a worker's searches owe.
type natSearch struct {
	tries, most int
	asker       uint32 // holder
	own         int    // tries that met connections of asker
	count       int    // of holders
	holders     [natHolders]natHolder
	debtNS      uint64
	paidNS      uint64 // clock of the last payment
	charged     uint64 // tries beyond the free ones, so far
}

// natHolder is one that has translations which were tried.
type natHolder struct {
	holder  uint32
	met     int
	number  uint32 // of a connection of its: one that is not established, if there is any
	replied bool
	reply   probe // the translation
}

// NATTries is how many tries the worker's frames have made so far, but for those
// that cost nothing.
func (tr *Tracker) NATTries() uint64 { return tr.search.charged }

func (s *natSearch) begin(asker uint32, now uint64) {
	s.debtNS -= min(s.debtNS, (now-min(s.paidNS, now))/natTimeShare)
	s.paidNS, s.asker = now, asker
	s.tries, s.own, s.count = 0, 0, 0
	if s.most = maxNATAddresses * (maxNATPorts + 1); s.debtNS > maxNATDebtNS {
		s.most = freeNATTries
	}
}

// over tells whether the search may go on no longer.
func (s *natSearch) over() bool { return s.tries >= s.most }

// end charges the search.
func (s *natSearch) end() {
	if more := uint64(max(s.tries-freeNATTries, 0)); more > 0 {
		s.charged += more
		s.debtNS += more * NATTryNS
	}
}

// met notes that connection n has a translation that was tried.
func (s *natSearch) met(t *Table, n uint32, reply *probe) {
	h, replied := t.holderOf(n), t.conns[n].list == listEstablished
	if h == s.asker {
		s.own++
		return
	}
	for i := range s.holders[:s.count] {
		if x := &s.holders[i]; x.holder == h {
			if x.met++; x.replied && !replied {
				x.number, x.replied, x.reply = n, false, *reply
			}
			return
		}
	}
	if s.count < natHolders {
		s.holders[s.count] = natHolder{h, 1, n, replied, *reply}
		s.count++
	}
}

// giver is the holder that has most of the translations tried, nil if the asking one
// has about as many.
func (s *natSearch) giver() *natHolder {
	var heaviest *natHolder
	for i := range s.holders[:s.count] {
		if x := &s.holders[i]; heaviest == nil || x.met > heaviest.met {
			heaviest = x
		}
	}
	if heaviest == nil || heaviest.met <= s.own+1 {
		return nil
	}
	return heaviest
}

// takeOver ends a connection of the holder that has most of the translations tried, and
// returns its translation; ok is false if there is none. Lock held.
func (tr *Tracker) takeOver() (reply probe, ok bool) {
	x := tr.search.giver()
	if x == nil {
		return reply, false
	}
	tr.holders[x.holder].evicted++
	tr.erase(x.number, EndEvicted)
	return x.reply, true
}

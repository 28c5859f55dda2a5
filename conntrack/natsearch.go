// SPDX-License-Identifier: Apache-2.0

package conntrack

// Limits of the search for a free translation. The search runs under the table's
// lock, and takes long if most translations are in use. Three limits apply:
//
//   - The queue that sent the frame is charged for the tries beyond the first few
//     (NATTries, datapath/fair.go).
//   - A worker spends only a part of its time on searches.
//   - If the search finds no free translation, it evicts one connection of another
//     quota holder (holder.go): of the quota holder that uses most of the tried
//     translations. Nothing is evicted if the quota holder of the new connection uses
//     about as many itself.

const (
	// freeNATTries is the number of tries of each search that cost the sending queue
	// nothing.
	freeNATTries = 16
	// NATTryNS is the approximate time of one try in nanoseconds
	// (BenchmarkNATExhausted).
	NATTryNS = 60
	// natTimeShare limits a worker to 1/natTimeShare of its time for charged tries.
	// Charged tries add to the worker's debt, and passing time reduces the debt. If
	// the debt exceeds maxNATDebtNS, a search gets only freeNATTries.
	natTimeShare = 16
	maxNATDebtNS = 1_000_000
	// natHolders is the largest number of quota holders whose translations one search
	// counts. The search ignores the connections of further quota holders.
	natHolders = 8
)

// natSearch is the search for the present frame's translation, and the time debt of
// all searches of a worker.
type natSearch struct {
	tries, most int    // number of tries made, and their limit
	holder      uint32 // quota holder of the new connection
	own         int    // number of tried translations used by the new connection's own quota holder
	count       int    // number of used entries in holders
	holders     [natHolders]natHolder
	debtNS      uint64
	paidNS      uint64 // time at which debtNS was last reduced
	charged     uint64 // number of charged tries since the worker started
}

// natHolder counts how many of the tried translations connections of one quota holder
// (holder.go) use.
type natHolder struct {
	holder  uint32
	met     int    // number of tried translations that this quota holder's connections use
	number  uint32 // connection to evict: an unreplied one if the search has found any
	replied bool   // the connection to evict is established
	reply   probe  // reply tuple of the connection to evict
}

// NATTries returns the number of charged tries of this worker since its start.
func (tr *Tracker) NATTries() uint64 { return tr.search.charged }

func (s *natSearch) begin(holder uint32, now uint64) {
	s.debtNS -= min(s.debtNS, (now-min(s.paidNS, now))/natTimeShare)
	s.paidNS, s.holder = now, holder
	s.tries, s.own, s.count = 0, 0, 0
	if s.most = maxNATAddresses * (maxNATPorts + 1); s.debtNS > maxNATDebtNS {
		s.most = freeNATTries
	}
}

// over reports whether the search has reached its limit of tries.
func (s *natSearch) over() bool { return s.tries >= s.most }

// end charges the tries of the search.
func (s *natSearch) end() {
	if more := uint64(max(s.tries-freeNATTries, 0)); more > 0 {
		s.charged += more
		s.debtNS += more * NATTryNS
	}
}

// met counts a tried translation that connection n already uses.
func (s *natSearch) met(t *Table, n uint32, reply *probe) {
	h, replied := t.holderOf(n), t.conns[n].list == listEstablished
	if h == s.holder {
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

// heaviestOther returns the quota holder whose connections use most of the tried
// translations. It returns nil unless this quota holder uses at least two more than
// the quota holder of the new connection.
func (s *natSearch) heaviestOther() *natHolder {
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

// evictForTranslation evicts a connection of the quota holder that heaviestOther
// returns, and returns the reply tuple of that connection. ok is false if
// heaviestOther returns nil. The caller holds the table's lock.
func (tr *Tracker) evictForTranslation() (reply probe, ok bool) {
	x := tr.search.heaviestOther()
	if x == nil {
		return reply, false
	}
	tr.holders[x.holder].evicted++
	tr.erase(x.number, EndEvicted)
	return x.reply, true
}

// SPDX-License-Identifier: Apache-2.0

package conntrack

// This file limits the search for a free translation. The search runs under the table's lock, and takes
// long if most translations are in use.
//
//   - The first freeNATTries tries of a search are free. Later ones are charged to the receive queue
//     of the frame (NATTries, datapath/fair.go).
//   - A worker spends at most 1/natTimeShare of its time on such later tries.
//   - If no translation is free, the search evicts a connection of another quota holder (port or
//     zone, holder.go): of the one that uses most of the tried translations. It does not do so if
//     the quota holder of the new connection uses about as many.

const (
	// freeNATTries is the number of tries in each search that are not charged to the receive queue of the
	// frame.
	freeNATTries = 16
	// NATTryNS is the approximate time of one try in nanoseconds
	// (BenchmarkNATExhausted).
	NATTryNS = 60
	// natTimeShare limits the tries beyond freeNATTries: on average, they take at most 1/natTimeShare of a
	// worker's time. While the worker has spent more than maxNATDebtNS beyond this share, a search gets
	// only freeNATTries tries.
	natTimeShare = 16
	maxNATDebtNS = 1_000_000
	// natHolders is the largest number of quota holders for which one search counts the translations in
	// use. It ignores further quota holders.
	natHolders = 8
)

// natSearch is the state of a worker's current search for a translation. debtNS is the time in
// nanoseconds that all searches of the worker have used beyond 1/natTimeShare of its time.
type natSearch struct {
	tries, limit int    // number of tries made, and their limit
	holder       uint32 // quota holder of the new connection
	own          int    // number of tried translations that the new connection's own quota holder uses
	count        int    // number of used entries in holders
	holders      [natHolders]natHolder
	debtNS       uint64
	paidNS       uint64 // CLOCK_MONOTONIC when debtNS was last reduced
	charged      uint64 // number of tries of all searches that counted as extra cost
}

// natHolder counts how many of the tried translations belong to one quota holder, other than that of the
// new connection.
type natHolder struct {
	holder  uint32
	met     int    // number of tried translations in use
	number  uint32 // connection to evict, preferably an unreplied one
	replied bool   // the connection to evict is established
	reply   probe  // reply tuple of the connection to evict
}

// NATTries returns how many tries beyond freeNATTries this worker has made since its start.
func (tr *Tracker) NATTries() uint64 { return tr.search.charged }

func (s *natSearch) begin(holder uint32, now uint64) {
	s.debtNS -= min(s.debtNS, (now-min(s.paidNS, now))/natTimeShare)
	s.paidNS, s.holder = now, holder
	s.tries, s.own, s.count = 0, 0, 0
	if s.limit = maxNATAddresses * (maxNATPorts + 1); s.debtNS > maxNATDebtNS {
		s.limit = freeNATTries
	}
}

func (s *natSearch) exhausted() bool { return s.tries >= s.limit }

// end adds the tries of this search beyond freeNATTries, and their time, to the totals of the worker.
func (s *natSearch) end() {
	if more := uint64(max(s.tries-freeNATTries, 0)); more > 0 {
		s.charged += more
		s.debtNS += more * NATTryNS
	}
}

// The method met counts a tried translation that another connection, n, already uses. It counts it for the
// quota holder of n. reply is the reply tuple of the translation.
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

// heaviestOther returns the quota holder that uses most of the tried translations. It
// returns nil unless this quota holder uses at least two more than the quota holder of
// the new connection.
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

// evictForTranslation evicts a connection of the quota holder that heaviestOther returns, and returns the
// reply tuple that this connection had. ok is false if heaviestOther returns none. The caller holds the
// table's lock.
func (tr *Tracker) evictForTranslation() (reply probe, ok bool) {
	x := tr.search.heaviestOther()
	if x == nil {
		return reply, false
	}
	tr.holders[x.holder].evicted++
	tr.erase(x.number, endEvicted)
	return x.reply, true
}

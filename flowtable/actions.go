// SPDX-License-Identifier: Apache-2.0

package flowtable

import "math/bits"

// This file has the action store. It stores each different action list once, with a reference
// count, so that megaflows with equal lists share cache lines. Each list is in one block. The
// block sizes are powers of two, and a buddy allocator manages the blocks.

const (
	// blockActions is the number of actions in the smallest block, which fills one
	// cache line.
	blockActions = 4
	// maxOrder is the order of the largest block, which holds MaxActions actions.
	maxOrder = 9
)

var _ = [1]struct{}{}[blockActions<<maxOrder-MaxActions]

// actionBlock describes blockActions consecutive actions of the action store. A larger block, for a
// longer list, uses only the actionBlock of its first blockActions actions.
type actionBlock struct {
	// next and prev link the free blocks of the same order. Each is 1 + the index of a block; 0: none.
	next, prev uint32
	refs       uint32 // number of megaflows with this list; 0: the block holds no list
	length     uint32 // length of the list in actions
	hash       uint32
	order      uint8
	free       bool
	_          [2]byte
}

// ActionRef refers to a list in the action store; 0: the empty list. It is the index of the list's first
// action, with refOne or refMany added. A block begins at a multiple of blockActions, so the two lowest
// bits of the index are 0.
type ActionRef uint32

const (
	refOne  = 1 // a list of one action
	refMany = 2 // a list of two or more actions; actionBlock.length has their number
	refBits = blockActions - 1
)

func (r ActionRef) index() uint32 { return uint32(r &^ refBits) }

// actionStore stores the action lists of one worker's megaflows, in the arrays of a Memory. Only this
// worker uses it.
type actionStore struct {
	actions []Action
	blocks  []actionBlock
	index   Index
	seeds   [4]uint64
	top     uint8                // order of the largest block that exists
	fresh   uint32               // index of the first block that was never used
	free    [maxOrder + 1]uint32 // first free block of each order: 1 + the block index; 0: none
}

func newActionStore(m *Memory, seed uint64) actionStore {
	s := actionStore{actions: m.actions, blocks: m.blocks, index: m.actionIndex}
	spread(seed, s.seeds[:])
	s.top = uint8(min(maxOrder, bits.Len(uint(len(s.blocks)))-1))
	return s
}

// list returns the list to which r refers, without copying.
func (s *actionStore) list(r ActionRef) []Action {
	if r == 0 {
		return nil
	}
	at := r.index()
	n := s.blocks[at/blockActions].length
	return s.actions[at:][:n:n]
}

func refer(block uint32, n int) ActionRef {
	if n == 1 {
		return ActionRef(block*blockActions | refOne)
	}
	return ActionRef(block*blockActions | refMany)
}

// acquire returns a reference to this action list and increments the list's reference count. It
// stores the list if it is new. ok is false if the store is full.
func (s *actionStore) acquire(list []Action) (r ActionRef, ok bool) {
	if len(list) == 0 {
		return 0, true
	}
	hash := s.hash(list)
	if block, found := s.find(hash, list); found {
		s.blocks[block].refs++
		return refer(block, len(list)), true
	}
	order := uint8(bits.Len(uint((len(list) - 1) / blockActions)))
	block, ok := s.allocate(order)
	if !ok {
		return 0, false
	}
	s.blocks[block] = actionBlock{refs: 1, length: uint32(len(list)), hash: hash, order: order}
	copy(s.actions[block*blockActions:], list)
	s.index.Insert(hash, block)
	return refer(block, len(list)), true
}

// release decrements the reference count of a list. It frees the list's block if no megaflow uses the
// list any more.
func (s *actionStore) release(r ActionRef) {
	if r == 0 {
		return
	}
	block := r.index() / blockActions
	b := &s.blocks[block]
	if b.refs--; b.refs == 0 {
		s.index.Remove(b.hash, block)
		s.giveBack(block, b.order)
	}
}

func (s *actionStore) find(hash uint32, list []Action) (block uint32, found bool) {
	wrap := uint32(len(s.index) - 1)
	for pos := hash & wrap; s.index[pos].value != 0; pos = (pos + 1) & wrap {
		block = s.index[pos].value - 1
		if s.index[pos].hash == hash && s.equal(block, list) {
			return block, true
		}
	}
	return 0, false
}

func (s *actionStore) equal(block uint32, list []Action) bool {
	if int(s.blocks[block].length) != len(list) {
		return false
	}
	stored := s.actions[block*blockActions:]
	for i := range list {
		if stored[i] != list[i] {
			return false
		}
	}
	return true
}

func (s *actionStore) hash(list []Action) uint32 {
	acc := s.seeds[0]
	for i := range list {
		a := &list[i]
		acc = fold(acc^s.seeds[1]^(uint64(a.Op)|uint64(a.U16)<<16|uint64(a.U32)<<32), a.U64^s.seeds[2])
	}
	return uint32(fold(acc^uint64(len(list)), s.seeds[3]))
}

func (s *actionStore) allocate(order uint8) (uint32, bool) {
	from := order
	for from <= s.top && s.free[from] == 0 {
		from++
	}
	var block uint32
	switch {
	case from <= s.top:
		block = s.free[from] - 1
		s.unlink(block)
	case order <= s.top && s.fresh+1<<s.top <= uint32(len(s.blocks)):
		from, block = s.top, s.fresh
		s.fresh += 1 << s.top
	default:
		return 0, false
	}
	for from > order { // keep the lower half
		from--
		s.link(block+1<<from, from)
	}
	return block, true
}

func (s *actionStore) giveBack(block uint32, order uint8) {
	for order < s.top {
		buddy := block ^ 1<<order
		if b := &s.blocks[buddy]; !b.free || b.order != order {
			break
		}
		s.unlink(buddy)
		block &= buddy
		order++
	}
	s.link(block, order)
}

func (s *actionStore) link(block uint32, order uint8) {
	first := s.free[order]
	s.blocks[block] = actionBlock{order: order, free: true, next: first}
	if first != 0 {
		s.blocks[first-1].prev = block + 1
	}
	s.free[order] = block + 1
}

func (s *actionStore) unlink(block uint32) {
	b := &s.blocks[block]
	if b.prev != 0 {
		s.blocks[b.prev-1].next = b.next
	} else {
		s.free[b.order] = b.next
	}
	if b.next != 0 {
		s.blocks[b.next-1].prev = b.prev
	}
	b.free = false
}

// SPDX-License-Identifier: Apache-2.0

package ofproto

import (
	"math/bits"

	"weft/flowtable"
	"weft/openflow"
)

// prefixField is a field of addresses or transport ports. A table has a trie for it, with the prefixes of
// all rules. By the first bits of a frame's address or port, the trie can prove that no rule of a subtable
// matches.
type prefixField struct {
	word  uint8
	shift uint8 // position of the field's lowest bit in its word, for a field of at most 64 bits
	bits  uint8 // size in bits; 128 bits take two words
	// steps are the prefix lengths that megaflows may have in this field, in ascending order. A length is
	// rounded up to the next of them. Each different length makes another mask of megaflows, so the steps limit
	// how many masks a sender of frames can cause.
	steps []uint8
}

// prefixFields lists the fields that have a trie, in the order of the search stages: tunnel addresses first.
var prefixFields = [...]prefixField{
	{flowtable.WTunIPv4, 32, 32, steps32}, {flowtable.WTunIPv4, 0, 32, steps32},
	{flowtable.WTunIPv6Src, 0, 128, steps128}, {flowtable.WTunIPv6Dst, 0, 128, steps128},
	{flowtable.WIPv4, 32, 32, steps32}, {flowtable.WIPv4, 0, 32, steps32},
	{flowtable.WIPv6Src, 0, 128, steps128}, {flowtable.WIPv6Dst, 0, 128, steps128},
	{flowtable.WL4, flowtable.TPSrcShift, 16, steps16}, {flowtable.WL4, flowtable.TPDstShift, 16, steps16},
}

var (
	steps16  = []uint8{0, 8, 16}
	steps32  = []uint8{0, 8, 16, 24, 32}
	steps128 = []uint8{0, 16, 32, 48, 64, 128}
)

// stage returns the number of the search stage in which subtables compare the field.
func (p *prefixField) stage() int { return stageOf(int(p.word)) }

// value returns the field of flow f, left-aligned in 128 bits.
func (p *prefixField) value(f *openflow.Flow) openflow.Value128 {
	if p.bits == 128 {
		return openflow.Value128{f[p.word], f[p.word+1]}
	}
	return openflow.Value128{f[p.word] >> p.shift << (64 - p.bits), 0}
}

// mask returns the mask of the first n bits of the field: hi for Flow[word], lo for the next word.
func (p *prefixField) mask(n uint8) (hi, lo uint64) {
	m := prefixMask(n)
	if p.bits == 128 {
		return m[0], m[1]
	}
	return m[0] >> (64 - p.bits) << p.shift, 0
}

// prefixMask returns a value whose n most significant bits are set.
func prefixMask(n uint8) openflow.Value128 {
	if n >= 64 {
		return openflow.Value128{^uint64(0), ^(^uint64(0) >> (n - 64))}
	}
	return openflow.Value128{^(^uint64(0) >> n), 0}
}

// length returns how many of the field's first bits are set in "mask", up to the first one that is not.
func (p *prefixField) length(mask *openflow.Flow) uint8 {
	v := p.value(mask)
	n := bits.LeadingZeros64(^v[0])
	if n == 64 {
		n += bits.LeadingZeros64(^v[1])
	}
	return uint8(min(n, int(p.bits)))
}

// round returns the next of the field's steps that is not less than the prefix length n.
func (p *prefixField) round(n uint8) uint8 {
	for _, s := range p.steps {
		if n <= s {
			return s
		}
	}
	return p.bits
}

// prefixTrie is a binary trie of the prefixes that the rules have in one field. A node is a prefix, with the
// number of the rules that have it. A node without rules has two children.
type prefixTrie struct {
	nodes []prefixNode // nodes[0] is unused: index 0 means no node. nodes[1] is the root.
	free  []uint32
}

// prefixNode is the prefix that consists of the first length bits of value. The other bits of value are 0.
type prefixNode struct {
	value    openflow.Value128
	children [2]uint32 // indexes of the children, selected by the bit after the prefix
	rules    uint32
	length   uint8
}

// prefixFound is the result of a look-up in a prefixTrie.
type prefixFound struct {
	// lengths is a set of prefix lengths. For each of them, a rule has the value's first bits as prefix.
	lengths [3]uint64
	// looked is the number of leading bits of the value that the look-up has read. Another value with the same
	// leading bits has the same result.
	looked uint8
	done   bool
}

func (f *prefixFound) contains(length uint8) bool { return f.lengths[length/64]>>(length%64)&1 != 0 }

// lookup finds the stored prefixes that v begins with. The result depends only on the first longest.looked
// bits of v.
func (t *prefixTrie) lookup(v openflow.Value128) (longest prefixFound) {
	longest.done = true
	if len(t.nodes) == 0 {
		return longest
	}
	for at := uint32(1); ; {
		n := &t.nodes[at]
		if common := commonPrefix(v, n.value, n.length); common < n.length {
			longest.looked = common + 1
			return longest
		}
		longest.looked = n.length
		if n.rules > 0 {
			longest.lengths[n.length/64] |= 1 << (n.length % 64)
		}
		if n.children == [2]uint32{} {
			return longest
		}
		longest.looked++ // the next bit decides about the look-up, even if the node has only one child
		if at = n.children[bitAt(v, n.length)]; at == 0 {
			return longest
		}
	}
}

// bitAt returns bit n of v. Bit 0 is the most significant bit.
func bitAt(v openflow.Value128, n uint8) int {
	if n < 64 {
		return int(v[0] >> (63 - n) & 1)
	}
	return int(v[1] >> (127 - n) & 1)
}

// commonPrefix returns the number of leading bits that a and b share, at most limit.
func commonPrefix(a, b openflow.Value128, limit uint8) uint8 {
	n := bits.LeadingZeros64(a[0] ^ b[0])
	if n == 64 {
		n += bits.LeadingZeros64(a[1] ^ b[1])
	}
	return uint8(min(n, int(limit)))
}

// add adds a rule with the first length bits of v as its prefix.
func (t *prefixTrie) add(v openflow.Value128, length uint8) {
	v = v.And(prefixMask(length))
	if len(t.nodes) == 0 {
		t.nodes = make([]prefixNode, 2)
	}
	for at := uint32(1); ; {
		n := &t.nodes[at]
		common := commonPrefix(v, n.value, min(n.length, length))
		if common < n.length {
			t.split(at, common)
			n = &t.nodes[at]
		}
		if length == n.length {
			n.rules++
			return
		}
		bit := bitAt(v, n.length)
		if n.children[bit] == 0 {
			child := t.node(prefixNode{value: v, length: length, rules: 1})
			t.nodes[at].children[bit] = child
			return
		}
		at = n.children[bit]
	}
}

// split puts a new node above the node with this index. The prefix of the new node consists of the first
// "length" bits.
func (t *prefixTrie) split(index uint32, length uint8) {
	child := t.node(t.nodes[index])
	n := &t.nodes[index]
	*n = prefixNode{value: n.value.And(prefixMask(length)), length: length}
	n.children[bitAt(t.nodes[child].value, length)] = child
}

func (t *prefixTrie) node(n prefixNode) uint32 {
	if last := len(t.free) - 1; last >= 0 {
		at := t.free[last]
		t.free = t.free[:last]
		t.nodes[at] = n
		return at
	}
	t.nodes = append(t.nodes, n)
	return uint32(len(t.nodes) - 1)
}

// remove removes one rule with the first length bits of v as its prefix.
func (t *prefixTrie) remove(v openflow.Value128, length uint8) {
	v = v.And(prefixMask(length))
	parent, at := uint32(0), uint32(1)
	for t.nodes[at].length != length {
		parent, at = at, t.nodes[at].children[bitAt(v, t.nodes[at].length)]
	}
	t.nodes[at].rules--
	t.tidy(at)
	if parent != 0 {
		for bit, child := range t.nodes[parent].children {
			if c := &t.nodes[child]; child != 0 && c.rules == 0 && c.children == [2]uint32{} {
				t.nodes[parent].children[bit] = 0
				t.free = append(t.free, child)
			}
		}
		t.tidy(parent)
	}
	if root := &t.nodes[1]; root.rules == 0 && root.children == [2]uint32{} {
		t.nodes, t.free = nil, nil
	}
}

// tidy removes a node that has no rules and only one child. The child takes its place.
func (t *prefixTrie) tidy(index uint32) {
	n := &t.nodes[index]
	if n.rules != 0 || (n.children[0] == 0) == (n.children[1] == 0) {
		return
	}
	child := n.children[0] | n.children[1]
	*n = t.nodes[child]
	t.free = append(t.free, child)
}

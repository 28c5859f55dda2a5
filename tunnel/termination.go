// SPDX-License-Identifier: Apache-2.0

package tunnel

import (
	"encoding/binary"

	"weft/flowtable"
)

// Termination says which received frames belong to a tunnel, and the tunnel's datapath port. If
// several entries match a frame, the most specific one decides. The order is: entries with remote and
// VNI, with remote only, with VNI only, with neither. Among equally specific entries, one with the
// local address comes first, then the one with the lowest index.
type Termination struct {
	Port    uint32 // datapath port number of the tunnel; 0: the entry is free
	VNI     uint32 // VNI, key or session ID; AnyVNI matches all (vni=flow, key=flow)
	UDPPort uint16 // 0: the kind has no UDP port
	// Extensions is one of the Ext constants. It says which reserved bits a VXLAN header may have.
	Extensions uint8
	// BFD says that frames to the MAC address BFDAddress go to the worker's BFD sessions.
	BFD bool
	// Kind is the kind of tunnel. Kinds may use the same UDP port only if SharesPort is true for them. Otherwise
	// frames of some of them are dropped as malformed.
	Kind Kind
	_    [3]byte
	// Local and Remote are addresses of the underlay. IPv4 addresses are mapped into IPv6. All zeros
	// match any address.
	Local, Remote [16]byte
}

// Values of Termination.Extensions.
const (
	// ExtIgnore: reserved bits of the VXLAN header are ignored (RFC 7348 section 5).
	ExtIgnore uint8 = iota
	// ExtRefuse: a frame with reserved bits in its VXLAN header is dropped, as in
	// Linux.
	ExtRefuse
	// ExtGBP: the bits of a group policy (draft-smith-vxlan-group-policy-05) are
	// ignored; other reserved bits drop the frame.
	ExtGBP
	// ExtGPE: a header of the generic protocol extension
	// (draft-ietf-nvo3-vxlan-gpe-13) is accepted if its next protocol is Ethernet or
	// absent; other reserved bits drop the frame.
	ExtGPE
	extensions
)

// AnyVNI is a value of Termination.VNI that matches every VNI.
const AnyVNI = ^uint32(0)

// MaxTerminations is the number of entries of a Terminations table.
const MaxTerminations = 1024

// terminationBytes is the size of an encoded Termination in bytes.
const terminationBytes = 4 + 4 + 4 + 16 + 16

// AppendTo appends the encoding of the termination, which has terminationBytes bytes, to buf.
func (t *Termination) AppendTo(buf []byte) []byte {
	flag := uint32(t.Kind) << 1
	if t.BFD {
		flag |= 1
	}
	buf = binary.LittleEndian.AppendUint32(buf, t.Port)
	buf = binary.LittleEndian.AppendUint32(buf, t.VNI)
	buf = binary.LittleEndian.AppendUint32(buf, uint32(t.UDPPort)|uint32(t.Extensions)<<16|flag<<24)
	buf = append(buf, t.Local[:]...)
	return append(buf, t.Remote[:]...)
}

// Parse decodes an encoding of AppendTo. For invalid bytes it returns false and leaves t unchanged. It
// allocates no memory.
func (t *Termination) Parse(body []byte) bool {
	if len(body) != terminationBytes {
		return false
	}
	port, vni := binary.LittleEndian.Uint32(body), binary.LittleEndian.Uint32(body[4:])
	udp := binary.LittleEndian.Uint32(body[8:])
	if udp>>16&0xff >= uint32(extensions) || udp>>25 >= uint32(kindEnd) || vni > 0xffffff && vni != AnyVNI {
		return false
	}
	*t = Termination{Port: port, VNI: vni, UDPPort: uint16(udp), Extensions: uint8(udp >> 16), BFD: udp>>24&1 != 0, Kind: Kind(udp >> 25),
		Local: [16]byte(body[12:]), Remote: [16]byte(body[28:])}
	return true
}

// Terminations is a worker's table of tunnels. It finds the tunnel of a received frame. The worker
// owns it. Only NewTerminations allocates memory.
type Terminations struct {
	entries [MaxTerminations]Termination
	tuples  [MaxTerminations]tuple     // index: entry
	locals  [MaxTerminations][2]uint64 // index: entry
	// ports has portBits bits for each UDP port: the family of the tunnels that use the port; 0: no
	// tunnel uses it.
	ports [1 << 16 * portBits / 64]uint64
	// OptionsKey is the key for hashes of Geneve options.
	OptionsKey flowtable.OptionsKey
	// slots is a hash table from tuples to entries, with open addressing, at most half full. A slot
	// has 1 + the index of an entry; 0: the slot is free. Every change of an entry rebuilds the table.
	slots [2 * MaxTerminations]uint16
	// hasGRE is true if a tunnel over GRE has an entry.
	hasGRE bool
	// last is the result for the previous frame, which is usually also the result for
	// the next one.
	last struct {
		tuple tuple
		local [2]uint64
		entry *Termination // nil: not valid
	}
}

// tuple is the part of an entry that the hash table compares: all fields that frames must match, except for
// Local.
type tuple struct {
	remote  [2]uint64 // 0: any
	vni     uint32    // AnyVNI: any
	udpPort uint32    // for tunnels over GRE: greTuple plus the family
}

// greTuple is added to the family in tuple.udpPort of tunnels over GRE, which have no UDP port. It is larger
// than all UDP ports, so no tunnel over UDP has the same tuple.
const greTuple = 1 << 16

// NewTerminations makes an empty table.
func NewTerminations() *Terminations { return &Terminations{} }

// Set adds or replaces the entry with this index. It returns false if index is out of range.
func (t *Terminations) Set(index uint32, e *Termination) bool {
	if index >= MaxTerminations {
		return false
	}
	t.entries[index] = *e
	t.rebuild()
	return true
}

// Clear frees the entry with this index.
func (t *Terminations) Clear(index uint32) {
	if index < MaxTerminations {
		t.entries[index] = Termination{}
		t.rebuild()
	}
}

func (t *Terminations) rebuild() {
	t.last.entry = nil
	clear(t.ports[:])
	clear(t.slots[:])
	t.hasGRE = false
	for i := range t.entries {
		e := &t.entries[i]
		if e.Port == 0 {
			continue
		}
		family, udpPort := kinds[e.Kind%kindEnd].family, uint32(e.UDPPort)
		if e.Kind.HasPort() {
			t.ports[e.UDPPort/perWord] |= uint64(family) << (e.UDPPort % perWord * portBits)
		} else {
			t.hasGRE, udpPort = true, greTuple+uint32(family)
		}
		t.tuples[i], t.locals[i] = tuple{halves(&e.Remote), e.VNI, udpPort}, halves(&e.Local)
		pos := t.tuples[i].hash()
		for t.slots[pos] != 0 {
			pos = (pos + 1) % uint32(len(t.slots))
		}
		t.slots[pos] = uint16(i + 1)
	}
}

func halves(a *[16]byte) [2]uint64 {
	return [2]uint64{binary.BigEndian.Uint64(a[:8]), binary.BigEndian.Uint64(a[8:])}
}

func (q *tuple) hash() uint32 {
	h := mix(q.remote[0]^0xa0761d6478bd642f, q.remote[1]^0xe7037ed1a0b428db)
	h = mix(h^uint64(q.vni), uint64(q.udpPort)^0x8ebc6af09c88c6e3)
	return uint32(h>>32) % (2 * MaxTerminations)
}

// find returns the most specific entry for a frame with these fields, or nil.
func (t *Terminations) find(remote, local [2]uint64, vni, udpPort uint32) *Termination {
	q := tuple{remote, vni, udpPort}
	if l := &t.last; l.entry != nil && l.tuple == q && l.local == local {
		return l.entry
	}
	var none [2]uint64
	for _, try := range [...]tuple{q, {remote, AnyVNI, udpPort}, {none, vni, udpPort}, {none, AnyVNI, udpPort}} {
		if e := t.findTuple(&try, local); e != nil {
			t.last.tuple, t.last.local, t.last.entry = q, local, e
			return e
		}
	}
	return nil
}

func (t *Terminations) findTuple(q *tuple, local [2]uint64) (found *Termination) {
	for pos := q.hash(); t.slots[pos] != 0; pos = (pos + 1) % uint32(len(t.slots)) {
		i := (t.slots[pos] - 1) % MaxTerminations
		if t.tuples[i] != *q {
			continue
		}
		if t.locals[i] == local {
			return &t.entries[i]
		}
		if found == nil && t.locals[i] == ([2]uint64{}) {
			found = &t.entries[i]
		}
	}
	return found
}

// family returns the family of the tunnels that use this UDP port; 0: none does.
func (t *Terminations) family(udpPort uint16) uint8 {
	return uint8(t.ports[udpPort/perWord]>>(udpPort%perWord*portBits)) & (1<<portBits - 1)
}

const (
	portBits = 2             // number of bits of a family in Terminations.ports
	perWord  = 64 / portBits // number of UDP ports in an element of Terminations.ports
)

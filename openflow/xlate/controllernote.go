// SPDX-License-Identifier: Apache-2.0

package xlate

import (
	"fmt"
	"hash/fnv"
	"sync"

	"weft/flowtable"
	"weft/internal/share"
	"weft/openflow"
	"weft/packet"
)

// ControllerNote has what a message to the controller (packet_in) says besides the frame: the flow
// that sent it, registers, metadata, tunnel and connection fields. A frame on its way from a worker
// to the controller carries only the number of its note, and its key if it is tracked.
type ControllerNote struct {
	// CameIn is the number in the data path of the port on which the frame arrived. The number of notes for
	// frames of this port is limited.
	CameIn uint32
	Bridge uint8
	// InPort is the patch port through which the frame came to the bridge; 0: it arrived on a port of
	// the bridge.
	InPort   uint32
	Table    uint8
	Cookie   uint64 // of the flow; ^0: no flow
	ID       uint16 // number of the controller
	Reason   string // "" means action
	Miss     bool   // the flow is a table-miss flow: it matches everything at priority 0
	Userdata string
	// Continuation is the rest of the translation after the action controller(pause), for the function
	// Resume; "": the frame is not paused.
	Continuation string
	State        [openflow.StateWords]uint64 // metadata and registers
	Tunnel       [flowtable.TunnelWords]uint64
	CT           [flowtable.CTWords]uint64
	TLVs         string // fields tun_metadata, see xlate.noteTLVs
}

// Metadata returns the fields of the note as a match, together with in_port. key is the
// frame's key at its last look-up, or nil. The original tuple of the frame's connection comes
// from key. The note has no tuple, because a megaflow covers many connections.
func (n *ControllerNote) Metadata(inPort uint32, key *flowtable.Key) openflow.Match {
	var m openflow.Match
	put := func(from int, words []uint64) {
		for i, w := range words {
			if m.Value[from+i] = w; w != 0 {
				m.Mask[from+i] = ^uint64(0)
			}
		}
	}
	put(openflow.WMetadata, n.State[:])
	put(flowtable.WTunID, n.Tunnel[:])
	put(flowtable.WCT, n.CT[:])
	narrowNote(&m)
	if key != nil && n.CT[0]>>flowtable.CTStateShift&0xff != 0 {
		putConnection(&m, key)
	}
	eachTLVWord(n.TLVs, func(w int, mask, v uint64) { openflow.SetBits(&m, w, v, mask) })
	openflow.SetInPort(&m, inPort)
	return m
}

// narrowNote removes from a note's match the 32-bit halves of words that are 0, so that the message
// leaves such fields out. It also removes the tuple of the connection, because a match on this tuple
// is valid only if it also matches the frame's own fields.
func narrowNote(m *openflow.Match) {
	for w := flowtable.WCTPorts; w < flowtable.KeyWords; w++ {
		if w != flowtable.WCTLabel && w != flowtable.WCTLabel+1 {
			m.Mask[w], m.Value[w] = 0, 0
		}
	}
	openflow.ClearBits(m, flowtable.WCT, 0xff<<flowtable.CTProtoShift)
	if m.Value.Key().CTZone() == 0 {
		openflow.ClearBits(m, flowtable.WCT, 0xffff) // ct_zone
	}
	for w := range m.Mask {
		for _, half := range []uint64{0xffffffff, 0xffffffff << 32} {
			if m.Value[w]&half == 0 && w != flowtable.WTunID && w != openflow.WMetadata {
				m.Mask[w] &^= half
			}
		}
	}
}

// putConnection adds the EtherType to the match of a packet_in, and the original tuple if
// the connection is valid. The EtherType is the prerequisite of the tuple's fields.
func putConnection(m *openflow.Match, key *flowtable.Key) {
	put := func(word int, mask uint64) {
		m.Value[word] |= key[word] & mask
		m.Mask[word] |= mask
	}
	const whole = ^uint64(0)
	etherType := key.EtherType()
	put(flowtable.WEthDst, 0xffff)
	if !openflow.NeedCT.Met(m) || key.CTProto() == 0 {
		return
	}
	switch etherType {
	case packet.EtherTypeIPv4:
		put(flowtable.WCTSrc+1, 0xffffffff)
		put(flowtable.WCTDst+1, 0xffffffff)
	case packet.EtherTypeIPv6:
		for _, word := range []int{flowtable.WCTSrc, flowtable.WCTSrc + 1, flowtable.WCTDst, flowtable.WCTDst + 1} {
			put(word, whole)
		}
	default:
		return
	}
	put(flowtable.WCT, 0xff<<flowtable.CTProtoShift)
	put(flowtable.WCTPorts, 0xffffffff<<32)
}

// ReasonCode returns the number of the note's reason in a packet_in.
func (n *ControllerNote) ReasonCode() uint8 {
	return (&openflow.Controller{Reason: n.Reason}).ReasonCode()
}

// Noter is an optional interface of an Env, which stores ControllerNotes.
type Noter interface {
	// StoreNote stores the note and returns its number.
	StoreNote(n *ControllerNote) uint32
}

// MaxNotes is the largest number of notes in a NoteTable. A sender could create a note
// with every frame if a flow copies frame fields to registers, so each port has a quota (see
// share.Ports). When the quota is used up, the port's oldest note is evicted; messages of the megaflow
// that uses this note then lack the note's fields.
const MaxNotes = 1 << 14

// NoteTable implements Noter. A note's number is its hash, so a restarted control process
// with the same flows gets the same numbers.
type NoteTable struct {
	mu      sync.Mutex
	byID    map[uint32]*ControllerNote
	ids     map[ControllerNote]uint32
	order   map[uint32][]uint32 // numbers of notes by port, oldest first
	own     *share.Ports
	evicted uint64
}

// NewNoteTable returns an empty table for at most MaxNotes notes.
func NewNoteTable() *NoteTable {
	return &NoteTable{byID: map[uint32]*ControllerNote{}, ids: map[ControllerNote]uint32{}, order: map[uint32][]uint32{}, own: share.New(MaxNotes)}
}

// StoreNote implements Noter. Equal notes have one number.
func (t *NoteTable) StoreNote(n *ControllerNote) uint32 {
	t.mu.Lock()
	defer t.mu.Unlock()
	if id, ok := t.ids[*n]; ok {
		return id
	}
	if order := t.order[n.CameIn]; len(order) > 0 && !t.own.MayHave(n.CameIn, 1) {
		old := order[0]
		t.order[n.CameIn] = order[1:]
		delete(t.ids, *t.byID[old])
		delete(t.byID, old)
		t.own.Add(n.CameIn, -1)
		t.own.Refuse(n.CameIn)
		t.evicted++
	}
	h := fnv.New32a()
	fmt.Fprintf(h, "%#v", *n)
	id := h.Sum32()
	for id == 0 || t.byID[id] != nil {
		id++
	}
	kept := *n
	t.byID[id], t.ids[kept] = &kept, id
	t.order[n.CameIn] = append(t.order[n.CameIn], id)
	t.own.Add(n.CameIn, 1)
	return id
}

// Note returns the note with a number. ok is false if no note has the number, or if the note has been
// evicted.
func (t *NoteTable) Note(id uint32) (n ControllerNote, ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	kept := t.byID[id]
	if kept == nil {
		return n, false
	}
	return *kept, true
}

// Shares calls visit for each port that has notes, or whose notes were evicted. It returns the totals
// of notes and of evicted notes.
func (t *NoteTable) Shares(visit func(port uint32, u share.Use)) (used int, evicted uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.own.Each(visit)
	return len(t.byID), t.evicted
}

// ttlExpired handles a frame whose TTL has expired at action a: dec_ttl, dec_mpls_ttl or dec_nsh_ttl. The
// frame goes to the controllers that the action names if the bridge is set to send such frames
// (Tables.SendExceptions). Otherwise it is dropped.
func (x *xlate) ttlExpired(a *openflow.Action) {
	x.note("the TTL has expired")
	if x.p.SendsExpired() {
		for id := range a.ControllerIDs {
			x.controller(&openflow.Controller{MaxLen: openflow.WholeFrame, ID: id, Reason: "invalid_ttl"})
		}
		return
	}
	x.noteDrop(packet.DropTTLExpired)
}

// missed sends a frame that matches no flow of a table to the controller.
func (x *xlate) missed(table uint8) {
	note := uint32(0)
	if noter, ok := x.env.(Noter); ok {
		note = noter.StoreNote(&ControllerNote{CameIn: x.noteOwner(), Bridge: x.p.Bridge(), InPort: x.patch, Table: table, Cookie: ^uint64(0), Reason: "no_match"})
	}
	x.commit()
	x.emit(flowtable.Action{Op: flowtable.OpController, U32: openflow.WholeFrame, U64: uint64(note)})
	x.sent = x.sent || !x.halted
}

// noteOwner returns the port against whose quota a note of the frame counts. The megaflow then
// matches the port. If several ports shared a megaflow, one of them could make the table evict the
// note that the others use.
func (x *xlate) noteOwner() uint32 {
	x.wc[flowtable.WPort] |= flowtable.InPortBits
	return x.cameIn
}

// noted stores a ControllerNote of the frame's present state, and returns the note's
// number. The megaflow then matches the tunnel and connection fields in the note.
func (x *xlate) noted(c *openflow.Controller) uint32 {
	noter, ok := x.env.(Noter)
	if !ok {
		return 0
	}
	n := ControllerNote{CameIn: x.noteOwner(), Bridge: x.p.Bridge(), InPort: x.patch, Cookie: ^uint64(0), ID: c.ID, Reason: c.Reason, Userdata: c.Userdata, Continuation: x.continuation}
	if x.rule != nil {
		n.Table, n.Cookie = x.rule.Table, x.rule.Cookie
		n.Miss = n.Reason == "" && x.rule.Priority == 0 && x.rule.Match == (openflow.PackedMatch{})
	} else if x.resumed != nil {
		n.Table, n.Cookie = x.resumed.Table, x.resumed.Cookie
	} else if n.Reason == "" && c.IsOutput() {
		n.Reason = "packet_out"
	}
	for _, id := range []openflow.FieldID{openflow.FTunID, openflow.FTunSrc, openflow.FTunDst, openflow.FTunIPv6Src, openflow.FTunIPv6Dst, openflow.FTunGBPID, openflow.FTunGBPFlags, openflow.FTunFlags, openflow.FCTState, openflow.FCTZone, openflow.FCTMark, openflow.FCTLabel} {
		if word, _, _ := openflow.WholeField(id).Mask(); x.flow[word] != 0 || id.Bits() > 64 && x.flow[word+1] != 0 {
			x.read(openflow.WholeField(id)) // a field of 0 is left out of the message
		}
	}
	copy(n.State[:], x.flow[openflow.WMetadata:])
	copy(n.Tunnel[:], x.flow[flowtable.WTunID:])
	n.Tunnel[flowtable.WTunOpts-flowtable.WTunID] = 0
	n.Tunnel[flowtable.WTunMeta-flowtable.WTunID] &^= flowtable.TunCritical
	n.TLVs = x.noteTLVs()
	n.CT[0] = x.flow[flowtable.WCT] &^ (0xff << flowtable.CTProtoShift)
	copy(n.CT[flowtable.WCTLabel-flowtable.WCT:], x.flow[flowtable.WCTLabel:flowtable.WCTLabel+2])
	return noter.StoreNote(&n)
}

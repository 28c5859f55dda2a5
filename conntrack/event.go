package conntrack

import (
	"encoding/binary"
	"fmt"
	"slices"

	"weft/internal/shm"
	"weft/packet"
)

// Events tell control which connections begin, change and end, for as long as it
// asks (Watch); nobody asking, each of these costs a test of one word, and a frame
// that changes nothing not even that. There is one ring for all workers, written
// under the table's lock, which whoever begins or ends a connection holds anyway, so
// that the events of a connection come in order. What finds the ring full is
// counted as lost; nobody waits.

// EventRingBytes is the size of the ring, some 10,000 events; its memory is taken
// as it is used.
const EventRingBytes = 1 << 20

// EventKind says what happened to a connection.
type EventKind uint8

// Kinds of event.
const (
	EventNew EventKind = iota
	EventUpdate
	EventDestroy
	EventKinds
)

// AllEvents is the set of all kinds, a bit each.
const AllEvents = 1<<EventKinds - 1

var eventNames = [EventKinds]string{"new", "update", "destroy"}

// String is the kind's name in commands and output.
func (k EventKind) String() string { return eventNames[k%EventKinds] }

// ParseEventKind is the kind of a name.
func ParseEventKind(name string) (EventKind, bool) {
	i := slices.Index(eventNames[:], name)
	return EventKind(i), i >= 0
}

// Reason says why a connection changed or ended.
type Reason uint8

// Reasons: ReasonState and ReasonMark of an EventUpdate, the others of an
// EventDestroy.
const (
	ReasonNone  Reason = iota
	ReasonState        // another state, and its timeout
	ReasonMark         // another ct_mark or ct_label
	EndExpired
	EndEvicted
	EndFlushed
	EndReplaced
	reasons
)

var reasonNames = [reasons]string{"", "state", "mark", "timeout", "eviction", "flush", "successor"}

// String is the reason's name in output; empty for ReasonNone.
func (r Reason) String() string { return reasonNames[r%reasons] }

// ended is the counter of connections that ended for a reason.
func (c *Counters) ended(why Reason) *uint64 {
	switch why {
	case EndEvicted:
		return &c.Evicted
	case EndFlushed:
		return &c.Flushed
	case EndReplaced:
		return &c.Replaced
	}
	return &c.Expired
}

// Event is one event. The connection is as it was then, without Entry.TimeoutS.
type Event struct {
	Kind   EventKind
	Reason Reason
	Entry  Entry
}

// settings.events: the zone in the lower half, above it eventOneZone and the kinds.
const (
	eventOneZone = 1 << 16
	eventKindsAt = 17
)

// Watch has workers tell of events of kinds, a bit each, in one zone or, if that
// is nil, in all; with no kinds of none. Control calls it.
func (m *Memory) Watch(kinds uint8, zone *uint16) {
	v := uint32(kinds&AllEvents) << eventKindsAt
	if zone != nil && v != 0 {
		v |= eventOneZone | uint32(*zone)
	}
	m.settings.events.Store(v)
}

// Events opens the reading end of the ring, which has one reader.
func (m *Memory) Events() *shm.Consumer { return shm.NewConsumer(m.events) }

// EventsLost is the number of events for which there was no room, since the table
// began.
func (m *Memory) EventsLost() uint64 { return m.head.eventsLost.Load() }

// watched tells whether control wants an event of a zone.
func (t *Table) watched(kind EventKind, zone uint16) bool {
	v := t.settings.events.Load()
	return v>>(eventKindsAt+uint32(kind))&1 != 0 && (v&eventOneZone == 0 || uint16(v) == zone)
}

// tellUpdate tells of a change of connection n, if it is still of generation g. No
// lock is held.
func (t *Table) tellUpdate(c *conn, n, g uint32, why Reason) {
	if !t.watched(EventUpdate, c.tuples[0].zone()) {
		return
	}
	t.lock()
	if c.generation() == g {
		t.tell(n, EventUpdate, why)
	}
	t.unlock()
}

// An event's message, little endian:
//
//	 0 kind, reason, class, phases of both sides   1 byte each
//	 6 flags                                       16 bits
//	 8 number, generation, mark, ends of both sides, 4 bytes unused; 32 bits each
//	32 label, both tuples' words                   64 bits each
//	80 addresses of an IPv6 connection             8 of 64 bits
const (
	eventBytes     = 80
	eventLongBytes = eventBytes + 64
)

// tell writes an event of live connection n. Lock held.
func (t *Table) tell(n uint32, kind EventKind, why Reason) {
	c := &t.conns[n]
	if !t.watched(kind, c.tuples[0].zone()) {
		return
	}
	size := eventBytes
	if c.tuples[0].ipv6() {
		size = eventLongBytes
	}
	msg := t.told.Reserve(size)
	if msg == nil {
		t.head.eventsLost.Store(t.head.eventsLost.Load() + 1)
		return
	}
	var peers [2]peer
	if hasPeers(c.tuples[0].proto()) {
		peers = t.peers[n]
	}
	var label [2]uint64
	if c.flags&connLabelled != 0 {
		label = t.labels[n]
	}
	le := binary.LittleEndian
	msg[0], msg[1], msg[2], msg[3], msg[4], msg[5] = byte(kind), byte(why), byte(c.class), byte(peers[0].phase), byte(peers[1].phase), 0
	le.PutUint16(msg[6:], c.flags)
	le.PutUint32(msg[8:], n)
	le.PutUint32(msg[12:], c.generation())
	le.PutUint32(msg[16:], c.mark)
	le.PutUint32(msg[20:], peers[0].end)
	le.PutUint32(msg[24:], peers[1].end)
	le.PutUint32(msg[28:], 0)
	for i, v := range [...]uint64{label[0], label[1], c.tuples[0].a, c.tuples[0].b, c.tuples[1].a, c.tuples[1].b} {
		le.PutUint64(msg[32+8*i:], v)
	}
	if size == eventLongBytes {
		for i, v := range t.addresses(n) {
			le.PutUint64(msg[eventBytes+8*i:], v)
		}
	}
	t.told.Commit()
	t.told.Publish()
}

// ParseEvent decodes a message of the ring. Control only.
func ParseEvent(msg []byte) (Event, error) {
	if len(msg) != eventBytes && len(msg) != eventLongBytes || msg[0] >= byte(EventKinds) || msg[1] >= byte(reasons) {
		return Event{}, fmt.Errorf("event of a connection of %d bytes that makes no sense", len(msg))
	}
	le := binary.LittleEndian
	word := func(i int) uint64 { return le.Uint64(msg[32+8*i:]) }
	var long addresses
	for i := range (len(msg) - eventBytes) / 8 {
		long[i] = le.Uint64(msg[eventBytes+8*i:])
	}
	flags := le.Uint16(msg[6:])
	ev := Event{Kind: EventKind(msg[0]), Reason: Reason(msg[1]), Entry: Entry{
		Ref:     Ref{le.Uint32(msg[8:]), le.Uint32(msg[12:])},
		Orig:    words{word(2), word(3)}.tuple((*[4]uint64)(long[:4])),
		Reply:   words{word(4), word(5)}.tuple((*[4]uint64)(long[4:])),
		Replied: flags&connReplied != 0, SNAT: flags&connSNAT != 0, DNAT: flags&connDNAT != 0,
		Class: Class(msg[2]) % Classes,
	}}
	e := &ev.Entry
	if flags&connLabelled != 0 {
		e.Mark, e.Label = le.Uint32(msg[16:]), [2]uint64{word(0), word(1)}
	}
	switch e.Orig.Proto {
	case packet.ProtoTCP:
		e.State, _ = stateOf(phase(msg[3]), phase(msg[4]))
	case packet.ProtoSCTP:
		e.Tags = [2]uint32{le.Uint32(msg[20:]), le.Uint32(msg[24:])}
	}
	return ev, nil
}

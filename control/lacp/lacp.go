// SPDX-License-Identifier: Apache-2.0

// Package lacp speaks the Link Aggregation Control Protocol (IEEE 802.1AX-2020 chapter 6) on
// the links of one aggregation. It has no clock, no sockets and no lock. The caller calls Step
// with the time and the states of the links, sends the PDUs that Step returns, and passes
// received PDUs to Receive.
//
//   - pdu.go: the frames
//   - lacp.go: the standard's state machines, for each link and for the aggregation
//
// The mux machine is the coupled one: a link begins to receive (collect) and to send
// (distribute) at the same time. There is no wait for further links (wait_while_timer), and no
// marker protocol. Open vSwitch does the same.
package lacp

import (
	"cmp"
	"errors"
	"slices"
	"time"
)

const (
	// FastInterval and SlowInterval are the times between two PDUs (section 6.4.4).
	FastInterval = time.Second
	SlowInterval = 30 * time.Second
	// silentIntervals is the number of PDU intervals after which a silent partner counts as
	// expired.
	silentIntervals = 3
	// MostSent is the largest number of PDUs that a link sends within FastInterval (section
	// 6.4.16). It also limits the answers to a partner that contradicts each PDU. Stats.Deferred
	// counts the steps at which a PDU had to wait.
	MostSent = 3
	// MostReceived is the largest number of PDUs that a link accepts within FastInterval. The
	// standard allows the partner only MostSent. The limit keeps a partner from occupying the
	// control process, because each PDU may change the bond and so the megaflows. Stats.Excess
	// counts further PDUs.
	MostReceived = 5
)

// Status is the state of the receive machine of a link.
type Status uint8

// Statuses of a link.
const (
	StatusDefaulted Status = iota // no partner is known
	StatusExpired                 // the partner is silent, or the link has just come up
	StatusCurrent                 // the partner's last PDU is in time
)

// String returns the status as Open vSwitch's lacp/show prints it.
func (s Status) String() string { return [...]string{"defaulted", "expired", "current"}[s] }

// Config has the operator's settings of an aggregation.
type Config struct {
	Active         bool // sends PDUs even to a partner that waits for the other side to begin
	Fast           bool // asks the partner for a PDU each FastInterval instead of each SlowInterval
	SystemPriority uint16
	System         [6]byte
	// Fallback lets links without a partner carry frames.
	Fallback bool
}

// Link is the present state of one link, as Step gets it.
type Link struct {
	Number              uint32 // number that the caller chooses, different for each link
	Up                  bool
	Port, Priority, Key uint16
}

// Stats are counters of a link.
type Stats struct {
	Sent, Received uint64
	// Bad counts slow-protocol frames that are no PDU. Markers counts requests of the marker
	// protocol, which get no answer.
	Bad, Markers uint64
	Excess       uint64 // PDUs beyond MostReceived
	// Deferred counts steps that did not send because of MostSent.
	Deferred                    uint64
	Expired, Defaulted, Carrier uint64 // number of changes to the status of this name, and of changes of the link's carrier
}

// Member is the negotiated state of a link, as Show returns it.
type Member struct {
	Number         uint32
	Status         Status
	Attached       bool // the link belongs to the aggregation
	MayEnable      bool
	Actor, Partner Info
	Stats          Stats
}

type member struct {
	link     Link
	status   Status
	statusTo time.Time // end of the status, except StatusDefaulted
	partner  Info
	believed Info // the partner's view of this link, from its last PDU or from a PDU sent since
	// sent and received have the times of the last PDUs, the oldest first, for MostSent and
	// MostReceived.
	sent     [MostSent]time.Time
	received [MostReceived]time.Time
	attached bool
	stats    Stats
}

// Aggregator is the state of an aggregation. Its zero value has no links.
type Aggregator struct {
	config  Config
	members []*member // by number
	// lead identifies the partner of the attached links: its system, its key and its flag Aggregation. It
	// has the links' own key in the field Port. chosen is true if there is such a partner.
	lead   Info
	chosen bool
}

// Frame is a PDU that the caller must send on a link.
type Frame struct {
	Number uint32 // of the link
	PDU    PDU
}

// Step advances the state machines to the time now, with the present settings and links. It
// returns the PDUs to send.
func (a *Aggregator) Step(now time.Time, config Config, links []Link) (frames []Frame) {
	a.config = config
	a.take(now, links)
	for _, m := range a.members {
		m.expire(now)
	}
	a.attach()
	for _, m := range a.members {
		if pdu, due := a.transmit(now, m); due {
			frames = append(frames, Frame{m.link.Number, pdu})
		}
	}
	return frames
}

// take makes the given links the members of the aggregation. A link that was a member keeps its
// state.
func (a *Aggregator) take(now time.Time, links []Link) {
	old := a.members
	a.members = make([]*member, 0, len(links))
	for _, l := range links {
		m := &member{}
		if i := slices.IndexFunc(old, func(o *member) bool { return o.link.Number == l.Number }); i >= 0 {
			m = old[i]
		}
		if m.link.Up != l.Up {
			m.follow(now, l.Up)
		}
		m.link = l
		a.members = append(a.members, m)
	}
	slices.SortFunc(a.members, func(x, y *member) int { return cmp.Compare(x.link.Number, y.link.Number) })
}

// follow handles a change of the link's carrier (states PORT_DISABLED and EXPIRED of the
// receive machine).
func (m *member) follow(now time.Time, up bool) {
	m.stats.Carrier++
	if up {
		m.expireNow(now)
		return
	}
	m.status, m.partner, m.believed = StatusDefaulted, Info{}, Info{}
}

// expireNow begins the status StatusExpired, in which the link asks the partner for fast PDUs.
func (m *member) expireNow(now time.Time) {
	m.status, m.statusTo = StatusExpired, now.Add(silentIntervals*FastInterval)
	m.partner.State = m.partner.State&^Synchronization | ShortTimeout
	m.stats.Expired++
}

// expire ends a status whose time is over: StatusCurrent becomes StatusExpired, and
// StatusExpired becomes StatusDefaulted.
func (m *member) expire(now time.Time) {
	if !m.link.Up || m.status == StatusDefaulted || now.Before(m.statusTo) {
		return
	}
	if m.status == StatusCurrent {
		m.expireNow(now)
		return
	}
	m.status, m.partner = StatusDefaulted, Info{}
	m.stats.Defaulted++
}

// Receive handles a slow-protocol frame that the link of this number has received. payload is
// the frame without its Ethernet header. Frames beyond MostReceived are ignored and counted.
func (a *Aggregator) Receive(now time.Time, number uint32, payload []byte) {
	m := a.member(number)
	if m == nil || !m.link.Up {
		return
	}
	if !m.received[0].IsZero() && now.Before(m.received[0].Add(FastInterval)) {
		m.stats.Excess++
		return
	}
	copy(m.received[:], m.received[1:])
	m.received[MostReceived-1] = now
	pdu, err := Parse(payload)
	switch {
	case errors.Is(err, errMarker):
		m.stats.Markers++
		return
	case err != nil:
		m.stats.Bad++
		return
	}
	m.stats.Received++
	interval := SlowInterval
	if a.config.Fast {
		interval = FastInterval
	}
	m.status, m.statusTo = StatusCurrent, now.Add(silentIntervals*interval)
	m.partner, m.believed = pdu.Actor, pdu.Partner
	// A partner whose PDU names another port than this one, as after a change of cables, is not in
	// sync (recordPDU in section 6.4.9).
	if actor := a.actor(m); !sameEnd(&pdu.Partner, &actor, Aggregation) {
		m.partner.State &^= Synchronization
	}
}

func (a *Aggregator) member(number uint32) *member {
	for _, m := range a.members {
		if m.link.Number == number {
			return m
		}
	}
	return nil
}

// attach decides which links form the aggregation: those with the same partner, the same key of
// the partner and the same own key. It keeps the present partner as long as one link has it.
// Otherwise the new partner is that of the link that the system with the lower priority number
// prefers.
func (a *Aggregator) attach() {
	var first *member
	stays := false
	for _, m := range a.members {
		if !a.selectable(m) {
			continue
		}
		stays = stays || a.chosen && m.leads(&a.lead)
		if first == nil || a.prefers(m, first) {
			first = m
		}
	}
	switch {
	case stays:
	case first == nil:
		a.chosen = false
	default:
		a.lead, a.chosen = first.group(), true
	}
	alone := false // a partner without the flag Aggregation gets only one link
	for _, m := range a.members {
		m.attached = a.chosen && a.selectable(m) && m.leads(&a.lead) && !alone
		if m.attached && a.lead.State == 0 {
			alone = true
		}
		if m.link.Up && m.status == StatusDefaulted && a.config.Fallback {
			m.attached = true
		}
	}
}

// selectable reports whether a link may join an aggregation: it has a partner, and the partner
// is not this system itself, as on a loop.
func (a *Aggregator) selectable(m *member) bool {
	return m.link.Up && m.status == StatusCurrent && m.partner.System != a.config.System
}

// group returns the values that all links of one aggregation have in common: the partner's
// system and key, and the link's own key (in the field Port).
func (m *member) group() Info {
	p := m.partner
	return Info{SystemPriority: p.SystemPriority, System: p.System, Key: p.Key, Port: m.link.Key, State: p.State & Aggregation}
}

func (m *member) leads(lead *Info) bool { return m.group() == *lead }

// prefers reports whether attach takes the partner of m rather than the partner of o.
func (a *Aggregator) prefers(m, o *member) bool {
	rank := func(m *member) Info {
		actor := a.actor(m)
		if compareSystems(&m.partner, &actor) < 0 {
			return m.partner
		}
		return actor
	}
	x, y := rank(m), rank(o)
	return cmp.Or(compareSystems(&x, &y), cmp.Compare(x.PortPriority, y.PortPriority), cmp.Compare(x.Port, y.Port)) < 0
}

// mayEnable reports whether a link may carry frames: it is attached and in sync with its
// partner, or has no partner and the setting Fallback allows that.
func (a *Aggregator) mayEnable(m *member) bool {
	if !m.attached || !m.link.Up {
		return false
	}
	return m.status == StatusCurrent && m.partner.State&Synchronization != 0 || m.status == StatusDefaulted && a.config.Fallback
}

// actor returns the information about the link's own end, for its PDUs.
func (a *Aggregator) actor(m *member) Info {
	i := Info{SystemPriority: a.config.SystemPriority, System: a.config.System, Key: m.link.Key,
		PortPriority: m.link.Priority, Port: m.link.Port, State: Aggregation}
	set := func(condition bool, flags State) {
		if condition {
			i.State |= flags
		}
	}
	set(a.config.Active, Activity)
	set(a.config.Fast, ShortTimeout)
	set(m.attached, Synchronization)
	set(a.mayEnable(m), Collecting|Distributing)
	set(m.status == StatusDefaulted, Defaulted)
	set(m.status == StatusExpired, Expired)
	return i
}

// transmitted has the flags whose change a PDU must tell the partner at once (section 6.4.14).
const transmitted = Activity | ShortTimeout | Aggregation | Synchronization

// transmit returns the PDU that a link must send now. "due" is false if it need not send any.
func (a *Aggregator) transmit(now time.Time, m *member) (pdu PDU, due bool) {
	actor, interval := a.actor(m), SlowInterval
	if m.partner.State&ShortTimeout != 0 {
		interval = FastInterval
	}
	last := &m.sent[MostSent-1]
	switch {
	case !m.link.Up || !a.config.Active && m.partner.State&Activity == 0:
		return pdu, false // both ends are passive
	case !last.IsZero() && now.Before(last.Add(interval)) && sameEnd(&actor, &m.believed, transmitted):
		return pdu, false
	case !m.sent[0].IsZero() && now.Before(m.sent[0].Add(FastInterval)):
		m.stats.Deferred++
		return pdu, false
	}
	m.believed = actor
	copy(m.sent[:], m.sent[1:])
	*last = now
	m.stats.Sent++
	return PDU{Actor: actor, Partner: m.partner}, true
}

// MayEnable reports whether the link of this number may carry frames.
func (a *Aggregator) MayEnable(number uint32) bool {
	m := a.member(number)
	return m != nil && a.mayEnable(m)
}

// Negotiated reports whether some link has found a partner for the aggregation.
func (a *Aggregator) Negotiated() bool { return a.chosen }

// Show returns the state of all links, sorted by number.
func (a *Aggregator) Show() (list []Member) {
	for _, m := range a.members {
		list = append(list, Member{Number: m.link.Number, Status: m.status, Attached: m.attached, MayEnable: a.mayEnable(m),
			Actor: a.actor(m), Partner: m.partner, Stats: m.stats})
	}
	return list
}

// SPDX-License-Identifier: Apache-2.0

// Package lacp speaks the Link Aggregation Control Protocol (IEEE 802.1AX-2020 chapter 6) on the
// links of one aggregation. It has no clock, no sockets and no lock: the caller calls Step with the
// time and the states of the links, sends what Step returns, and passes received PDUs to Receive.
//
//   - pdu.go: the frames
//   - lacp.go: the machines of the standard, for each link and for the aggregation
//
// The mux machine is the coupled one: a link collects and distributes at once. There is no
// wait for further links (wait_while_timer), and no marker protocol. Open vSwitch does the same.
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
	// silentIntervals is the number of intervals after which a silent partner has expired.
	silentIntervals = 3
	// MostSent is the largest number of PDUs that a link sends within FastInterval (section
	// 6.4.16). A partner that contradicts each PDU gets no more; Stats.Deferred counts.
	MostSent = 3
	// MostReceived is the largest number of PDUs that a link takes within FastInterval. The standard
	// allows a partner MostSent. Each PDU may change the bond, and so the megaflows. Stats.Excess
	// counts further ones.
	MostReceived = 5
)

// Status is the state of the receive machine of a link.
type Status uint8

// Statuses.
const (
	StatusDefaulted Status = iota // no partner is known
	StatusExpired                 // the partner is silent, or the link has just come up
	StatusCurrent                 // the partner's last PDU is in time
)

// String returns the word of Open vSwitch.
func (s Status) String() string { return [...]string{"defaulted", "expired", "current"}[s] }

// Config are the settings of an aggregation.
type Config struct {
	Active         bool // sends without being asked
	Fast           bool // asks the partner for fast PDUs
	SystemPriority uint16
	System         [6]byte
	// Fallback lets links without a partner carry frames.
	Fallback bool
}

// Link is a link of the aggregation.
type Link struct {
	Number              uint32 // any, different for each link
	Up                  bool
	Port, Priority, Key uint16
}

// Stats are counters of a link.
type Stats struct {
	Sent, Received uint64
	// Bad counts slow-protocol frames that are no PDU; Markers the requests of the marker protocol,
	// which get no answer.
	Bad, Markers uint64
	Excess       uint64 // PDUs beyond MostReceived
	// Deferred counts steps that did not send because of MostSent.
	Deferred                    uint64
	Expired, Defaulted, Carrier uint64 // changes to a status, and changes of the link
}

// Member is a link as Show lists it.
type Member struct {
	Number         uint32
	Status         Status
	Attached       bool // belongs to the aggregation
	MayEnable      bool
	Actor, Partner Info
	Stats          Stats
}

type member struct {
	link     Link
	status   Status
	statusTo time.Time // end of the status, except StatusDefaulted
	partner  Info
	believed Info // what the partner has last said about this link, or what was sent since
	// sent and received have the times of the last PDUs, the oldest first
	sent     [MostSent]time.Time
	received [MostReceived]time.Time
	attached bool
	stats    Stats
}

// Aggregator is the state of an aggregation. Its zero value has no links.
type Aggregator struct {
	config  Config
	members []*member // by number
	// lead is the partner of the attached links, with the system, the key and the flag
	// Aggregation. chosen says whether there is one.
	lead   Info
	chosen bool
}

// Frame is a PDU to send.
type Frame struct {
	Number uint32 // of the link
	PDU    PDU
}

// Step brings the aggregation to a time. It returns the PDUs to send.
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

// take makes the links the members.
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

// follow follows the link itself (states PORT_DISABLED and EXPIRED of the receive machine).
func (m *member) follow(now time.Time, up bool) {
	m.stats.Carrier++
	if up {
		m.expireNow(now)
		return
	}
	m.status, m.partner, m.believed = StatusDefaulted, Info{}, Info{}
}

// expireNow waits for a PDU for a short time, and asks for fast ones meanwhile.
func (m *member) expireNow(now time.Time) {
	m.status, m.statusTo = StatusExpired, now.Add(silentIntervals*FastInterval)
	m.partner.State = m.partner.State&^Synchronization | ShortTimeout
	m.stats.Expired++
}

// expire ends a status whose time is over.
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

// Receive takes a slow-protocol frame without its Ethernet header, which a link has received.
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
	// A partner that means another port, as after a change of cables, is not in sync with this
	// one (recordPDU in section 6.4.9).
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

// attach decides which links are one aggregation: those with the same partner, its key and the
// same own key. It stays with a partner as long as one link has it. Otherwise it takes
// the partner of the link that the system with the lower priority number prefers.
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
	alone := false // a partner that does not aggregate has one link
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

// selectable reports whether a link has a partner, which is not this system itself.
func (a *Aggregator) selectable(m *member) bool {
	return m.link.Up && m.status == StatusCurrent && m.partner.System != a.config.System
}

// group returns what all links of one aggregation have in common.
func (m *member) group() Info {
	p := m.partner
	return Info{SystemPriority: p.SystemPriority, System: p.System, Key: p.Key, Port: m.link.Key, State: p.State & Aggregation}
}

func (m *member) leads(lead *Info) bool { return m.group() == *lead }

// prefers reports whether m is rather the lead than o.
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

// mayEnable reports whether a link may carry frames.
func (a *Aggregator) mayEnable(m *member) bool {
	if !m.attached || !m.link.Up {
		return false
	}
	return m.status == StatusCurrent && m.partner.State&Synchronization != 0 || m.status == StatusDefaulted && a.config.Fallback
}

// actor returns what the link says about itself.
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

// transmitted are the flags whose change the partner must learn at once (section 6.4.14).
const transmitted = Activity | ShortTimeout | Aggregation | Synchronization

// transmit returns the PDU that a link must send now, if it must.
func (a *Aggregator) transmit(now time.Time, m *member) (pdu PDU, due bool) {
	actor, interval := a.actor(m), SlowInterval
	if m.partner.State&ShortTimeout != 0 {
		interval = FastInterval
	}
	last := &m.sent[MostSent-1]
	switch {
	case !m.link.Up || !a.config.Active && m.partner.State&Activity == 0:
		return pdu, false // nobody waits for PDUs
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

// MayEnable reports whether a link may carry frames.
func (a *Aggregator) MayEnable(number uint32) bool {
	m := a.member(number)
	return m != nil && a.mayEnable(m)
}

// Negotiated reports whether there is a partner.
func (a *Aggregator) Negotiated() bool { return a.chosen }

// Show lists the links.
func (a *Aggregator) Show() (list []Member) {
	for _, m := range a.members {
		list = append(list, Member{Number: m.link.Number, Status: m.status, Attached: m.attached, MayEnable: a.mayEnable(m),
			Actor: a.actor(m), Partner: m.partner, Stats: m.stats})
	}
	return list
}

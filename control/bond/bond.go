// SPDX-License-Identifier: Apache-2.0

// Package bond decides which members of a bond send. It has no clock, no sockets and no lock:
// the caller calls Step with the time and the links' states. The settings' words and the delays
// are those of Open vSwitch (ovs-vswitchd.conf.db(5), "Bonding Configuration").
package bond

import (
	"cmp"
	"slices"
	"time"
)

// Mode is the way in which a bond spreads frames over its members.
type Mode uint8

// Modes of a bond.
const (
	// ActiveBackup sends and receives on one member, the active one.
	ActiveBackup Mode = iota
	// BalanceSLB assigns each pair of source MAC address and VLAN to a member. The bond receives
	// broadcasts and multicasts on the active member only.
	BalanceSLB
	// BalanceTCP assigns each connection to a member. The switch at the other end must treat all
	// members as one link, by LACP.
	BalanceTCP
)

// Buckets is the number of hash values that BalanceSLB and BalanceTCP divide among the members,
// as in Open vSwitch.
const Buckets = 256

// Config has the operator's settings of a bond.
type Config struct {
	Mode               Mode
	UpDelay, DownDelay time.Duration // how long a link must be up, or down, before its member is enabled or disabled
	Primary            uint32        // member that is active whenever it can be; 0: none
}

// Link is the state of a member's device.
type Link struct {
	Number uint32 // of the port, not 0
	Up     bool
}

// Member is the state of a member, as Show returns it.
type Member struct {
	Number  uint32
	Enabled bool
	Up      bool
	// Pending is true while the member waits for a delay of Config, because its link has gone up
	// or down. Left is the rest of the delay.
	Pending bool
	Left    time.Duration
	Hashes  int // number of hash values whose frames the member sends
}

type member struct {
	link     Link
	disabled bool // the operator has disabled the member (see Enable)
	enabled  bool
	pending  bool
	due      time.Time // time of the pending change
}

func (m *member) able() bool { return m.link.Up && !m.disabled }

// Bond is the state of a bond. Its zero value has no members.
type Bond struct {
	config  Config
	members []*member // by number
	active  uint32    // 0: none
	last    uint32    // last active member
	chosen  uint32    // active member that the operator has chosen; 0: none
	buckets [Buckets]uint32
	able    []uint32 // members among which spread has divided the buckets
}

// Step advances the bond to the time now. links lists the links of all members. Step reports
// whether the active member or the member of a bucket has changed.
func (b *Bond) Step(now time.Time, config Config, links []Link) (changed bool) {
	active, buckets := b.active, b.buckets
	b.config = config
	b.take(links)
	for _, m := range b.members {
		m.run(now, &b.config)
	}
	b.choose(now)
	b.spread()
	return b.active != active || b.buckets != buckets
}

// take makes the ports in links the members of the bond. A port that was a member keeps its state. A new
// member is disabled.
func (b *Bond) take(links []Link) {
	old := b.members
	b.members = make([]*member, 0, len(links))
	for _, l := range links {
		m := &member{}
		if i := slices.IndexFunc(old, func(o *member) bool { return o.link.Number == l.Number }); i >= 0 {
			m = old[i]
		}
		m.link = l
		b.members = append(b.members, m)
	}
	slices.SortFunc(b.members, func(a, o *member) int { return int(int64(a.link.Number) - int64(o.link.Number)) })
}

// run enables or disables a member whose link has been up, or down, for the delay of Config. A
// link that returns to its former state within the delay changes nothing.
func (m *member) run(now time.Time, c *Config) {
	if m.able() == m.enabled {
		m.pending = false
		return
	}
	if !m.pending {
		delay := c.DownDelay
		if m.able() {
			delay = c.UpDelay
		}
		if m.disabled {
			delay = 0 // an order of the operator (Enable) needs no delay
		}
		m.pending, m.due = true, now.Add(delay)
	}
	if !now.Before(m.due) {
		m.enabled, m.pending = m.able(), false
	}
}

func (b *Bond) member(number uint32) *member {
	for _, m := range b.members {
		if m.link.Number == number {
			return m
		}
	}
	return nil
}

func (b *Bond) enabled(number uint32) bool {
	m := b.member(number)
	return m != nil && m.enabled
}

// choose sets the active member: the operator's choice, or else the primary, the last active member, or
// the first enabled member. If no member is enabled, it enables the member whose delay is over first,
// without waiting for the rest of the delay.
func (b *Bond) choose(now time.Time) {
	if !b.enabled(b.chosen) {
		b.chosen = 0
	}
	defer func() { b.last = cmp.Or(b.active, b.last) }()
	for _, number := range []uint32{b.chosen, b.config.Primary, b.last} {
		if b.enabled(number) {
			b.active = number
			return
		}
	}
	b.active = 0
	var soonest *member
	for _, m := range b.members {
		if m.enabled {
			b.active = m.link.Number
			return
		}
		if m.able() && (soonest == nil || m.due.Before(soonest.due)) {
			soonest = m
		}
	}
	if soonest != nil {
		soonest.enabled, soonest.pending = true, false
		b.active = soonest.link.Number
	}
}

// spread gives each bucket an enabled member after members were enabled or disabled. It moves
// as few buckets as it can: those of disabled members, and those that exceed a member's equal
// share.
func (b *Bond) spread() {
	var able []uint32
	for _, m := range b.members {
		if m.enabled {
			able = append(able, m.link.Number)
		}
	}
	if slices.Equal(able, b.able) {
		return
	}
	b.able = able
	if len(able) == 0 {
		b.buckets = [Buckets]uint32{}
		return
	}
	most := (Buckets + len(able) - 1) / len(able)
	has := map[uint32]int{}
	var free []int
	for i, number := range b.buckets {
		if !slices.Contains(able, number) {
			free = append(free, i)
		} else if has[number]++; has[number] > most {
			free = append(free, i)
			has[number]--
		}
	}
	for _, i := range free {
		least := slices.MinFunc(able, func(x, y uint32) int { return has[x] - has[y] })
		b.buckets[i] = least
		has[least]++
	}
}

// Active returns the number of the active member's port; 0: no member is enabled.
func (b *Bond) Active() uint32 { return b.active }

// Table returns the port number of the member for each hash value; 0: none.
func (b *Bond) Table() [Buckets]uint32 { return b.buckets }

// Show returns the state of all members, sorted by number.
func (b *Bond) Show(now time.Time) (list []Member) {
	for _, m := range b.members {
		one := Member{Number: m.link.Number, Enabled: m.enabled, Up: m.able(), Pending: m.pending}
		if m.pending {
			one.Left = max(0, m.due.Sub(now))
		}
		for _, number := range b.buckets {
			if number == m.link.Number {
				one.Hashes++
			}
		}
		list = append(list, one)
	}
	return list
}

// SetActive makes an enabled member the active one until it is disabled. It returns false, and
// does nothing, if the member is not enabled.
func (b *Bond) SetActive(number uint32) bool {
	if !b.enabled(number) {
		return false
	}
	b.chosen = number
	return true
}

// Balances reports whether the bond spreads frames over its members by hash.
func (b *Bond) Balances() bool { return b.config.Mode != ActiveBackup }

// Migrate assigns a hash value to an enabled member. This lasts until a member is enabled or disabled.
// Migrate returns false, and does nothing, if the member is not enabled.
func (b *Bond) Migrate(hash uint8, number uint32) bool {
	if !b.enabled(number) {
		return false
	}
	b.buckets[hash] = number
	return true
}

// Enable sets whether a member may be enabled. If enable is false, the next Step disables the member,
// even if its link is up. If enable is true, the state of the link decides again, with the delays of
// Config. Enable returns false for a port that is no member.
func (b *Bond) Enable(number uint32, enable bool) bool {
	m := b.member(number)
	if m != nil {
		m.disabled, m.pending = !enable, false
	}
	return m != nil
}

// SPDX-License-Identifier: Apache-2.0

package ofproto

import (
	"sync/atomic"

	"weft/openflow"
)

// Limits has the limits that the Tables of all bridges share.
type Limits struct {
	Rules int // rules in all tables; 0: DefaultRules
}

// Changes lists the rules that one call of Apply, or of a similar method, has added, modified and removed.
// If an add has replaced a rule, the old rule is in Removed.
type Changes struct {
	Added, Modified, Removed []*Rule
}

// Tables has the flow tables of one bridge, with its groups and meters. The package comment says which
// methods may run concurrently.
type Tables struct {
	tables     [openflow.Tables]classifier
	rules      []*Rule  // index: slot
	free       []uint32 // unused slots
	leaving    []uint32 // slots of removed rules, which become free at the next change
	count      int
	common     *common
	bridge     uint8
	config     [openflow.Tables]TableConfig
	counts     [openflow.Tables]int
	groups     map[uint32]*openflow.Group
	groupStats map[uint32]*GroupStats // by group number
	watching   bool                   // at least one group watches a port
	bundles    int                    // number of bundle actions of all rules
	meters     map[uint32]*openflow.Meter
	// learned counts flows and learn actions by table and cookie. It has only the tables and cookies for which
	// a learn action has a limit or delete_learned.
	learned    map[learnKey]*learnGroup
	orphans    []learnKey // tables and cookies whose last learn action with delete_learned is gone
	generation uint64
	lookups    [openflow.Tables]TableLookups
	// If missToController is true, frames that match no flow go to the controller. If expiredToController is
	// true, frames whose TTL has expired in dec_ttl do. Otherwise these frames are dropped.
	missToController    bool
	expiredToController bool
	fragments           Fragments
	tlvs                atomic.Pointer[openflow.TLVMap] // parsers and formatters read it without a lock
}

// TableLookups has the number of look-ups in a table since the start of the control process.
type TableLookups struct {
	All     uint64
	Matched uint64 // found a flow
}

// CreditLookups counts the look-ups of a number of packets with the same translation. Each rule in "rules"
// was the result of a look-up. In each table in missed, a look-up found no rule. CreditLookups ignores rules
// and tables of other bridges. It needs exclusive access to the tables.
func (p *Tables) CreditLookups(rules []*Rule, missed []BridgeTable, packets uint64) {
	for _, r := range rules {
		if r.Bridge == p.bridge {
			p.lookups[r.Table].All += packets
			p.lookups[r.Table].Matched += packets
		}
	}
	for _, m := range missed {
		if m.Bridge == p.bridge {
			p.lookups[m.Table].All += packets
		}
	}
}

// Lookups returns the numbers of look-ups in a table, and of those that found a flow.
func (p *Tables) Lookups(table uint8) TableLookups { return p.lookups[table] }

// NewTables returns the empty Tables of bridge 0.
func NewTables(l Limits) *Tables {
	if l.Rules == 0 {
		l.Rules = openflow.DefaultRules
	}
	return &Tables{common: newCommon(l.Rules)}
}

// Len returns the number of rules.
func (p *Tables) Len() int { return p.count }

// Generation returns a number that changes whenever the translation of a frame may change: with rules,
// groups, meters, the TLV map, SetFragments and SendExceptions.
func (p *Tables) Generation() uint64 { return p.generation }

// Rule returns the rule that has this slot, or nil.
func (p *Tables) Rule(slot uint32) *Rule {
	if int(slot) >= len(p.rules) {
		return nil
	}
	return p.rules[slot]
}

// Expire removes the rules whose timeout has passed. The hard timeout counts from the rule's last change.
// The idle timeout counts from its last change or from the last frame that matched it. Rule.Why says which
// timeout has passed; it is the hard timeout if both have. Expire returns the removed rules.
func (p *Tables) Expire(nowNS uint64) []*Rule {
	const second = 1_000_000_000
	var gone []*Rule
	p.releaseSlots()
	take := func(r *Rule, reason Why) {
		p.detach(r, reason)
		p.leaving = append(p.leaving, r.Slot)
		gone = append(gone, r)
	}
	for _, r := range p.rules {
		if r == nil || r.IdleTimeout == 0 && r.HardTimeout == 0 {
			continue
		}
		idle := max(r.UsedNS, r.ModifiedNS) + uint64(r.IdleTimeout)*second
		hard := r.ModifiedNS + uint64(r.HardTimeout)*second
		reason := NotRemoved
		switch {
		case r.HardTimeout != 0 && nowNS >= hard:
			reason = WhyHard
		case r.IdleTimeout != 0 && nowNS >= idle:
			reason = WhyIdle
		default:
			continue
		}
		take(r, reason)
	}
	p.takeOrphans(func(r *Rule) { take(r, WhyDeleted) })
	if len(gone) > 0 {
		p.generation++
	}
	return gone
}

// Bridge returns the number of the bridge that the tables belong to.
func (p *Tables) Bridge() uint8 { return p.bridge }

// Lookup returns the rule of highest priority in a table that matches the flow f, or nil. If the rule
// matches because all parts of a conjunction have matching rules, conj is the conjunction's ID. Otherwise
// conj is 0. Lookup calls v with the bits of f that it has read.
func (p *Tables) Lookup(table uint8, f *openflow.Flow, v Visitor) (r *Rule, conj uint32) {
	return p.tables[table].lookup(f, v)
}

// SendExceptions decides which frames go to the controller instead of being dropped: frames that match no
// flow (wantMisses), and frames whose TTL has expired in dec_ttl (wantExpired). By default, OpenFlow 1.0
// sends frames that match no flow to the controller, and later versions drop them.
func (p *Tables) SendExceptions(wantMisses, wantExpired bool) {
	p.missToController, p.expiredToController = wantMisses, wantExpired
	p.generation++
}

// Fragments says how look-ups treat fragments of IP frames. The values are those of OFPC_FRAG_* and of Open
// vSwitch's NX_MATCH on the wire.
type Fragments uint8

const (
	// FragmentsNormal makes tp_src, tp_dst and the ICMP fields of all fragments 0, also those of
	// the first fragment. All fragments of a datagram then match the same flows.
	FragmentsNormal Fragments = 0
	// FragmentsDrop drops fragments: no look-up finds a flow for them.
	FragmentsDrop Fragments = 1
	// FragmentsNXMatch lets the first fragment match by its ports. Later fragments have the ports 0.
	FragmentsNXMatch Fragments = 3
)

// SetFragments changes how look-ups treat fragments.
func (p *Tables) SetFragments(mode Fragments) {
	p.fragments = mode
	p.generation++
}

// Fragments returns how look-ups treat fragments.
func (p *Tables) Fragments() Fragments { return p.fragments }

// SendsMisses reports whether frames that match no flow go to the controller.
func (p *Tables) SendsMisses() bool { return p.missToController }

// SendsExpired reports whether frames whose TTL dec_ttl finds expired go to the controller.
func (p *Tables) SendsExpired() bool { return p.expiredToController }

// SPDX-License-Identifier: Apache-2.0

package xlate

import (
	"net/netip"
	"slices"

	"weft/openflow"
	"weft/openflow/fdb"
)

// This file has the rules of the groups into which the central controller (weft-central) puts ports, and
// decides about one frame. checks.go calls it for the port that sends the frame and for each port that
// gets it.
//
// The rules allow connections. A frame of a connection is allowed if the rules allow the connection's
// first packet, which the original tuple of the connection shows (ct_nw_src and so on). Each translation
// decides again, also for established connections. If a rule is removed, the connections that no other
// rule allows therefore end, once the megaflows are translated again (docs/decisions/0067-groups.md).

// Policy has the rules of the groups of a port. It is immutable.
type Policy struct {
	Groups *fdb.Groups // groups of the port, which the rules of other ports may name
	Rules  []PolicyRule
	// FiltersSent is true if connections that the port begins need a rule, too.
	FiltersSent bool
}

// PolicyRule allows the connections that match all its fields.
type PolicyRule struct {
	Sent     bool         // the rule allows connections that the port begins; otherwise those to the port
	Protocol uint8        // of IP; 0: any
	Ports    []PortRange  // destination ports of the first packet; none: any
	ICMPType int          // of the first packet; -1: any
	Prefix   netip.Prefix // address of the other end; invalid: any
	Group    string       // group of the other end; "": any
	Name     string       // for traces
}

// PortRange is the ports from First to Last.
type PortRange struct{ First, Last uint16 }

// policyZones is the lowest connection tracking zone of ports with groups. The zone of a port is
// policyZones plus its number in the data path. Flows that users add must not use these zones.
const policyZones = 0xf000

func policyZone(port *PortInfo) uint16 { return policyZones + uint16(port.At()) }

// subject is the first packet of the connection about which rules decide: fields of the frame, or
// of the original tuple of its connection.
type subject struct {
	x *xlate
	// began is true if the port whose rules decide has sent the packet, and false if the packet is for
	// this port.
	began    bool
	protocol openflow.FieldID
	port     openflow.FieldID // destination port
	icmpType openflow.FieldID
	remote   openflow.FieldID // IP address of the other end
	noPorts  bool             // the frame is a later fragment, which has no ports
	// peer returns the groups of the port at the other end of the connection. If the switch does not know
	// the address of the other end, the result "unknown" is what the control process must ask the central
	// controller (weft-central).
	peer func() (groups *fdb.Groups, unknown fdb.Question)

	resolved bool // peer was called; the fields below have its results
	groups   *fdb.Groups
	unknown  fdb.Question
}

// allowed returns the first rule of the policy that allows the packet s, or nil. The result "open" is
// true if the policy needs no rule for the packet.
func (s *subject) allowed(p *Policy) (rule *PolicyRule, open bool) {
	if s.began && !p.FiltersSent {
		return nil, true
	}
	for i := range p.Rules {
		if r := &p.Rules[i]; r.Sent == s.began && s.matches(r) {
			return r, false
		}
	}
	return nil, false
}

// matches reports whether the rule allows the packet s. It reads as few bits of the frame as possible,
// because the megaflow of the translation must match all bits that were read.
func (s *subject) matches(r *PolicyRule) bool {
	x := s.x
	if r.Protocol != 0 && uint8(x.read(openflow.WholeField(s.protocol))[1]) != r.Protocol {
		return false
	}
	if len(r.Ports) > 0 && (s.noPorts || !slices.ContainsFunc(r.Ports, func(p PortRange) bool { return x.within(s.port, p) })) {
		return false
	}
	if r.ICMPType >= 0 && (s.noPorts || int(x.read(openflow.WholeField(s.icmpType))[1]) != r.ICMPType) {
		return false
	}
	if r.Prefix.IsValid() && !x.among(s.remote, []netip.Prefix{r.Prefix}) {
		return false
	}
	if r.Group == "" {
		return true
	}
	if !s.resolved {
		s.groups, s.unknown = s.peer()
		s.resolved = true
	}
	return s.groups.Contains(r.Group)
}

// within reports whether the port in a field is in the range. The megaflow matches as few leading
// bits of the port as prove that the port is inside, or outside, the range.
func (x *xlate) within(id openflow.FieldID, p PortRange) bool {
	const width = 16
	v := uint16(openflow.WholeField(id).Get(&x.flow)[1])
	inside := v >= p.First && v <= p.Last
	for n := 0; ; n++ {
		free := uint16(1<<(width-n) - 1)
		lo, hi := v&^free, v|free
		if n == width || inside && lo >= p.First && hi <= p.Last || !inside && (hi < p.First || lo > p.Last) {
			x.readPrefix(id, width, n)
			return inside
		}
	}
}

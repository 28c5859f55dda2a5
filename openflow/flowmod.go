// SPDX-License-Identifier: Apache-2.0

package openflow

// Command says what a FlowMod does with the rules that it selects.
type Command uint8

// These are the commands of OpenFlow's flow_mod.
const (
	Add          Command = iota // adds a rule; replaces a rule with equal match and priority
	Modify                      // changes the actions of all rules within Match; without any, adds one
	ModifyStrict                // changes the rule with equal match and priority; without one, adds it
	Delete                      // deletes all rules within Match
	DeleteStrict                // deletes the rule with equal match and equal priority
)

const (
	// Tables is the number of flow tables. Their numbers are 0 to 254.
	Tables = 255
	// TableAll is no number of a table. In a modify, a delete or a filter it means all tables, in an add table
	// 0, and in a resubmit the current table.
	TableAll = 0xff
	// DefaultPriority is the priority of a flow whose text gives none.
	DefaultPriority = 32768
	// MaxRules is the largest number of flows in all bridges of a switch. More are refused.
	MaxRules = 1 << 20
	// DefaultRules is the largest number of rules that ofproto.Tables hold if Limits.Rules is 0. An add of more
	// rules fails.
	DefaultRules = 2 << 20
)

// Flags are the flags of a change of flows and of the rules that it adds.
type Flags uint16

// Flags of a FlowMod. ovs-ofctl(8) calls them send_flow_rem, check_overlap, reset_counts, no_packet_counts
// and no_byte_counts.
const (
	SendFlowRem Flags = 1 << iota
	CheckOverlap
	ResetCounts
	NoPacketCounts
	NoByteCounts
)

// FlowMod is one change of a bridge's flow tables. With the command Delete it is also the filter that selects
// the rules of a dump.
type FlowMod struct {
	Command  Command
	Table    uint8 // table number; TableAll: table 0 in an add, otherwise every table
	Priority uint16
	Match    PackedMatch
	// Cookie and CookieMask select rules by their cookie. NewCookie is the cookie of
	// added rules. If ModifyCookie is set, modified rules also get NewCookie.
	Cookie, CookieMask, NewCookie uint64
	ModifyCookie                  bool
	// ByOutPort selects only rules that output to OutPort.
	ByOutPort bool
	// ByOutGroup selects only rules with an action group:OutGroup.
	ByOutGroup bool
	// KeepCounts is true if an add that replaces a rule keeps the rule's counters, as OpenFlow 1.3 says. It is
	// false if the counters begin at 0, as OpenFlow 1.0 says.
	KeepCounts bool
	// ModifyOnly is true if a modify that finds no rule changes nothing, as OpenFlow 1.3 says. It is false if
	// the modify then adds a rule, as OpenFlow 1.0 says.
	ModifyOnly               bool
	OutGroup                 uint32
	OutPort                  uint32
	IdleTimeout, HardTimeout uint16 // seconds, 0: none
	Importance               uint16
	Flags                    Flags
	// Learner is the port whose frame has executed the learn action that adds this flow, by its number in the
	// data path. 0: no learn action adds the flow. Each port may cause only a limited number of learned flows.
	Learner uint32
	// LearnLimit is the largest number of flows in this Table with the cookie NewCookie; 0: no limit. Only
	// ofproto.Tables.ApplyLearned enforces it.
	LearnLimit uint32
	Actions    []Action
	// Notes are remarks for the operator, one line each, about fields of the match that ParseFlowMod has
	// ignored.
	Notes []string
	// Bridge is the number of the bridge to which a learn action adds the flow. Other changes do not use it.
	Bridge uint8
	// TLVs is the TLV map with which Match and Actions were parsed; nil: they have no field tun_metadata. The
	// bridge refuses an add or modify if its TLV map now maps one of these fields to another option.
	TLVs *TLVMap
	// Line is the number of the flow's line in its file, from 1 on; 0: the flow is from no file.
	Line int
}

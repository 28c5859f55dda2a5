// SPDX-License-Identifier: Apache-2.0

package openflow

// Command says what a FlowMod does with the rules that it selects.
type Command uint8

// Commands.
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
	// TableAll is a number that no table has. It selects all tables in changes and filters, and the current
	// table in resubmit.
	TableAll = 0xff
	// DefaultPriority is the priority of a flow without one in its text.
	DefaultPriority = 32768
	// MaxRules is the largest number of flows of a switch, in all of its bridges. Further flows are refused.
	MaxRules = 1 << 20
	// DefaultRules is the largest number of rules in ofproto.Tables whose Limits give none. An add beyond it
	// fails.
	DefaultRules = 2 << 20
)

// Flags are the flags of a FlowMod, and of the rules that it adds.
type Flags uint16

// Flags, with the words of ovs-ofctl(8).
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
	// ByOutGroup selects only rules that name group OutGroup.
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
	// Learner is the data path's number of the port whose frame has executed the learn action that makes this
	// flow; 0: no learn action makes it. Each port has a limited share of the learned flows.
	Learner uint32
	// LearnLimit is the largest number of flows with this Table and NewCookie; 0: no limit. Only ApplyLearned of
	// package ofproto obeys it.
	LearnLimit uint32
	Actions    []Action
	// Notes are remarks of ParseFlowMod for the operator, one line each. They say which match fields of the
	// flow's text it has ignored.
	Notes []string
	// Bridge is the number of the bridge to which a learned flow is added. Other changes do not use it.
	Bridge uint8
	// TLVs is the TLV map with which Match and Actions were parsed; nil: they have no field tun_metadata. The
	// bridge refuses an add or modify if its present TLV map has another mapping for one of the fields.
	TLVs *TLVMap
	// Line is the number of the flow's line in its file, from 1 on; 0: the flow is from no file.
	Line int
}

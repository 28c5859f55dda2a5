// SPDX-License-Identifier: Apache-2.0

package openflow

// Command is the command of a FlowMod.
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
	// TableAll selects all tables in changes and filters, the current table in
	// resubmit.
	TableAll = 0xff
	// DefaultPriority is the priority of a flow without one in its text.
	DefaultPriority = 32768
	// MaxRules is the largest number of flows of a switch. Further flows are refused.
	MaxRules = 1 << 20
	// DefaultRules is the largest number of rules in a pipeline without Limits. An
	// add beyond it fails.
	DefaultRules = 2 << 20
)

// Flags of a FlowMod and a Rule.
type Flags uint16

// Flags, with the words of ovs-ofctl(8).
const (
	SendFlowRem Flags = 1 << iota
	CheckOverlap
	ResetCounts
	NoPacketCounts
	NoByteCounts
)

// FlowMod is one change of the flow tables. It also serves as a filter that selects
// rules.
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
	// KeepCounts makes an add that replaces a rule keep the rule's counters, as
	// OpenFlow 1.3 says. Without KeepCounts they are 0, as with OpenFlow 1.0.
	KeepCounts bool
	// ModifyOnly keeps a modify that finds no rule from adding one, as OpenFlow 1.3
	// says.
	ModifyOnly               bool
	OutGroup                 uint32
	OutPort                  uint32
	IdleTimeout, HardTimeout uint16 // seconds, 0: none
	Importance               uint16
	Flags                    Flags
	// Learner is the data path's number of the port whose frame has taught the flow; 0: no
	// learned flow. A port has a share of the flows that frames may teach.
	Learner uint32
	// LearnLimit is the largest number of flows with this Table and NewCookie that
	// ApplyLearned allows; 0: no limit.
	LearnLimit uint32
	Actions    []Action
	// Notes are remarks for the operator about the text, one line each.
	Notes []string
	// Bridge is the bridge of a learned flow.
	Bridge uint8
	// TLVs is the TLV map of the fields tun_metadata in Match and Actions; nil: they have
	// no such field. An add or modify is refused if the bridge now maps one of these fields
	// otherwise.
	TLVs *TLVMap
	// Line is the line number in a file of flows, from 1 on; 0: no file.
	Line int
}

package openflow

import (
	"io"
	"time"

	"weft/flowtable"
	"weft/packet"
)

type FieldID uint8

// ParseError says which word was wrong and what was expected instead.
type ParseError struct {
	Line     int // 1-based line of a file; 0: not from a file
	Word     string
	Expected string
}

func (e *ParseError) Error() string { panic("todo") }

// ParseFlowMod parses one flow in ovs-ofctl's syntax. A leading add, modify,
// modify_strict, delete or delete_strict overrides command.
func ParseFlowMod(text string, command Command, names Names) (FlowMod, error) { panic("todo") }

// ParseFlowMods parses a file of flows: one a line, # begins a comment.
func ParseFlowMods(r io.Reader, command Command, names Names) ([]FlowMod, error) { panic("todo") }

// ParseFilter parses the argument of dump-flows or del-flows: a match with
// table, cookie/mask and out_port, perhaps "".
func ParseFilter(text string, names Names) (FlowMod, error) { panic("todo") }

// ParseFlow parses an exact flow, as trace takes it: fields without masks.
func ParseFlow(text string, names Names) (Flow, error) { panic("todo") }

// ParseActions parses a list of actions.
func ParseActions(text string, names Names) ([]Action, error) { panic("todo") }

// FormatRule is the line of dump-flows for r (with one leading blank, without
// newline), at time nowNS (CLOCK_MONOTONIC).
func FormatRule(r *Rule, nowNS uint64, names Names) string { panic("todo") }

// FormatFlowMod is the flow as text that ParseFlowMod reads back: for
// persistence.
func FormatFlowMod(m *FlowMod, names Names) string { panic("todo") }

// FormatMatch is the match part, "" for everything; priority is left out.
func FormatMatch(m *Match, names Names) string { panic("todo") }

// FormatActions is the action list, "drop" if it is empty.
func FormatActions(actions []Action, names Names) string { panic("todo") }

// FormatDatapathActions is the action list of a megaflow.
func FormatDatapathActions(actions []flowtable.Action, names Names) string { panic("todo") }

// Command says what a FlowMod does.
type Command uint8

const (
	Add Command = iota
	Modify
	ModifyStrict
	Delete
	DeleteStrict
)

// TableAll stands for every table in deletes, modifies and filters, and for the
// current table in resubmit.
const TableAll = 0xff

// Tables is the number of tables: 0 to 254.
const Tables = 255

// DefaultPriority is that of a flow whose text names none.
const DefaultPriority = 32768

// Flags of a FlowMod and Rule.
type Flags uint16

const (
	SendFlowRem Flags = 1 << iota
	CheckOverlap
	ResetCounts
	NoPacketCounts
	NoByteCounts
	NoReadOnly
)

// FlowMod is one change of the tables.
type FlowMod struct {
	Command  Command
	Table    uint8
	Priority uint16
	Match    Match
	// Cookie and CookieMask select rules to modify or delete; NewCookie is that
	// of added rules, and of modified ones if ModifyCookie.
	Cookie, CookieMask, NewCookie uint64
	ModifyCookie                  bool
	// OutPort, unless 0, selects for deletes rules that output there.
	OutPort                  uint32
	IdleTimeout, HardTimeout uint16 // s, 0: none
	Importance               uint16
	Flags                    Flags
	Actions                  []Action
}

// Rule is a flow in a table. Everything but the statistics is fixed from the
// Apply that made or modified it: modifying replaces Actions by a new slice.
type Rule struct {
	// Slot is unique among the rules that exist, small and stable.
	Slot                     uint32
	Table                    uint8
	Priority                 uint16
	Match                    Match
	Cookie                   uint64
	IdleTimeout, HardTimeout uint16 // s
	Importance               uint16
	Flags                    Flags
	Actions                  []Action
	// CreatedNS and ModifiedNS are CLOCK_MONOTONIC.
	CreatedNS, ModifiedNS uint64
	// Statistics, kept by control through Credit.
	Packets, Bytes, UsedNS uint64
	// Removed is set once the rule is in no table.
	Removed bool
}

// Credit counts packets and bytes that hit r until usedNS (CLOCK_MONOTONIC).
// The owner of the pipeline calls it alone.
func (r *Rule) Credit(packets, bytes, usedNS uint64) { panic("todo") }

// FlowMod is the add that makes the rule again: for persistence.
func (r *Rule) FlowMod() FlowMod { panic("todo") }

// Limits bound a pipeline.
type Limits struct {
	Rules int // in all tables; 0: DefaultRules
}

// Changes is what an Apply did.
type Changes struct {
	Added, Modified, Removed []*Rule
}

// Pipeline is the tables.
type Pipeline struct{}

func NewPipeline(l Limits) *Pipeline { panic("todo") }

// Apply does all of mods in order, or, on an error, nothing. nowNS is
// CLOCK_MONOTONIC.
func (p *Pipeline) Apply(mods []FlowMod, nowNS uint64) (Changes, error) { panic("todo") }

// Expire removes the rules whose hard or idle timeout has passed.
func (p *Pipeline) Expire(nowNS uint64) []*Rule { panic("todo") }

// Select returns the rules a filter (ParseFilter) or delete selects, by table,
// then falling priority, then age.
func (p *Pipeline) Select(filter *FlowMod) []*Rule { panic("todo") }

// Rule returns the rule of that slot, nil if there is none.
func (p *Pipeline) Rule(slot uint32) *Rule { panic("todo") }

// Len is the number of rules.
func (p *Pipeline) Len() int { panic("todo") }

// Generation changes with every Apply or Expire that changed anything a
// translation could depend on.
func (p *Pipeline) Generation() uint64 { panic("todo") }

// Learn is the effect of normal on the MAC table, which control applies.
type Learn struct {
	Valid bool
	VLAN  uint16
	Port  uint32
	MAC   uint64
}

// Translation is a megaflow and what comes with it.
type Translation struct {
	// Mask has the bits of the key that the result depends on.
	Mask    flowtable.Key
	Actions []flowtable.Action
	// Rules are the rules that matched, each as often as it did, in order.
	Rules []*Rule
	// Drop says why nothing is sent; DropNone if something is.
	Drop  packet.DropReason
	Learn Learn
	// UsedMACs and UsedPorts tell that the result depends on the MAC table, on
	// the set of ports, beyond what Actions show.
	UsedMACs, UsedPorts bool
}

// TraceStep is one step of a translation.
type TraceStep struct {
	Depth  int
	Table  uint8
	Rule   *Rule   // matched; nil: table miss, or this step is an action
	Action *Action // executed; nil: this step is a lookup
	Flow   Flow    // before the step
	Note   string  // what came of it, for the reader
}

// Translate runs key through the tables. The result shares nothing with p but
// Rules.
func (p *Pipeline) Translate(key *flowtable.Key, env Env) Translation { panic("todo") }

// Trace is Translate that tells hook of each step.
func (p *Pipeline) Trace(key *flowtable.Key, env Env, hook func(TraceStep)) Translation {
	panic("todo")
}

// MACTable is the table of learnt addresses. The owner guards it: Lookup may be
// concurrent with Lookup only.
type MACTable struct{}

// DefaultMACAge is how long an address stays without being seen.
const DefaultMACAge = 300 * time.Second

// NewMACTable holds at most max addresses; at the limit the one seen longest
// ago makes room.
func NewMACTable(max int, age time.Duration) *MACTable { panic("todo") }

// Learn notes the address, and reports whether forwarding changed: it is new,
// or has moved.
func (t *MACTable) Learn(l Learn, nowNS uint64) (changed bool) { panic("todo") }

// Lookup is Env.MAC.
func (t *MACTable) Lookup(vlan uint16, mac uint64) (port uint32, ok bool) { panic("todo") }

// Expire removes what has aged, Flush what was learnt on port; they return the
// number removed.
func (t *MACTable) Expire(nowNS uint64) int { panic("todo") }
func (t *MACTable) Flush(port uint32) int   { panic("todo") }

// Generation changes whenever a Lookup may give another answer than before.
func (t *MACTable) Generation() uint64 { panic("todo") }

// Len is the number of addresses.
func (t *MACTable) Len() int { panic("todo") }

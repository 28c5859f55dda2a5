// SPDX-License-Identifier: Apache-2.0

package openflow

// GroupType says which buckets of a group are executed for a frame.
type GroupType uint8

// Types of groups (OpenFlow 1.5, 5.10.1).
const (
	GroupAll      GroupType = iota // executes every bucket, each on a copy of the frame
	GroupSelect                    // executes one live bucket, selected by a hash of the connection
	GroupIndirect                  // executes its only bucket
	GroupFailover                  // executes the first live bucket
)

var groupTypeWords = [...]string{"all", "select", "indirect", "ff"}

// Limits of groups.
const (
	// MaxGroup is the highest group number.
	MaxGroup = 0xffffff00
	// GroupAny selects all groups in deletes and lists.
	GroupAny = 0xffffffff
	// MaxGroups is the largest number of groups in a bridge. MaxBuckets is the largest number of buckets in one
	// group. A change that would exceed a limit fails.
	MaxGroups  = 1 << 16
	MaxBuckets = 1 << 10
)

// Bucket is a set of actions that a group may execute. The bucket can depend on the liveness of a port or a
// group.
type Bucket struct {
	ID     uint32
	Weight uint16 // share of the connections that a GroupSelect sends here, relative to the other buckets
	// The bucket is live while the port WatchPort or the group WatchGroup is live.
	// PortNone and GroupAny mean that the bucket does not watch a port or a group. A
	// bucket that watches neither is always live.
	WatchPort, WatchGroup uint32
	Actions               []Action
	Set                   []Action // Actions in their order of execution; ParseGroupMod and NewGroup fill it
}

// order sets b.Set to the actions in their order of execution.
func (b *Bucket) order() {
	var set ActionSet
	set.Add(b.Actions)
	b.Set = set.Ordered()
}

// Group is an entry of a bridge's group table. The entry is immutable: a modification replaces it.
type Group struct {
	ID      uint32
	Type    GroupType
	Buckets []Bucket
	// Method is the selection_method: "", hash or dp_hash. All three use the same hash, which includes Param.
	// Fields has the names of the hashed fields as text. If it is empty, addresses and ports are hashed.
	Method string
	Param  uint64
	Fields string
	hashed []FieldID // the fields that the text Fields names
}

// GroupCommand says what a GroupMod does: add, modify, add or modify, or delete.
type GroupCommand uint8

// These are the commands of OpenFlow's group_mod. GroupPut is Open vSwitch's add_or_mod.
const (
	GroupAdd    GroupCommand = iota
	GroupModify              // fails if the group does not exist
	GroupPut                 // adds or modifies
	GroupDelete              // deletes the group and its flows; ID GroupAny: all groups
)

// GroupMod is one change of the group table.
type GroupMod struct {
	Command GroupCommand
	Group   Group
	Line    int // line number, see FlowMod.Line
	// TLVs is the TLV map with which the actions were parsed; nil: they have no field tun_metadata. Unless the
	// command is a delete, the bridge refuses the change if its TLV map now maps one of these fields to another
	// option.
	TLVs *TLVMap
}

// String returns the type's word in ovs-ofctl(8).
func (t GroupType) String() string { return groupTypeWords[t] }

// SPDX-License-Identifier: Apache-2.0

package openflow

// GroupType is the way in which a group selects the buckets that it executes.
type GroupType uint8

// Types, with the words of ovs-ofctl(8).
const (
	GroupAll      GroupType = iota // every bucket gets a copy of the frame
	GroupSelect                    // executes one live bucket, selected by a hash of the connection
	GroupIndirect                  // the only bucket
	GroupFailover                  // the first live bucket
)

var groupTypeWords = [...]string{"all", "select", "indirect", "ff"}

// Limits of groups.
const (
	// MaxGroup is the highest group number.
	MaxGroup = 0xffffff00
	// GroupAny selects all groups in deletes and lists.
	GroupAny = 0xffffffff
	// MaxGroups bounds the groups of a pipeline, MaxBuckets the buckets of one group.
	// A change beyond a limit fails.
	MaxGroups  = 1 << 16
	MaxBuckets = 1 << 10
)

// Bucket is an action set of a group.
type Bucket struct {
	ID     uint32
	Weight uint16 // for GroupSelect
	// The bucket is live while the port WatchPort or the group WatchGroup is live.
	// PortNone and GroupAny mean that the bucket does not watch a port or a group. A
	// bucket that watches neither is always live.
	WatchPort, WatchGroup uint32
	Actions               []Action
	Set                   []Action // Actions in order of execution, which ParseGroupMod and NewGroup fill
}

// order fills Set from Actions.
func (b *Bucket) order() {
	var set ActionSet
	set.Add(b.Actions)
	b.Set = set.Ordered()
}

// Group is an entry of the group table, immutable in a pipeline: a modification
// replaces it.
type Group struct {
	ID      uint32
	Type    GroupType
	Buckets []Bucket
	// Method is the selection_method: "", hash or dp_hash, which use the same hash.
	// Param is added to the hash. Fields are the hashed fields; "": addresses and
	// ports.
	Method string
	Param  uint64
	Fields string
	hashed []FieldID // parsed Fields
}

// GroupCommand is the command of a GroupMod.
type GroupCommand uint8

// Commands.
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
	// TLVs is the TLV map of the fields tun_metadata in the actions; nil: they have no such
	// field. A change is refused if the bridge now maps one of these fields otherwise.
	TLVs *TLVMap
}

// String returns the type's word in ovs-ofctl(8).
func (t GroupType) String() string { return groupTypeWords[t] }

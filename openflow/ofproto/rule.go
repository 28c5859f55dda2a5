// SPDX-License-Identifier: Apache-2.0

package ofproto

import "weft/openflow"

// Rule is a flow in a table. A modify changes Actions, Cookie and ModifiedNS, and may reset the counters.
// Credit changes the counters and UsedNS. RefreshLearned changes ModifiedNS. Finished.ReduceTimeouts
// shortens the timeouts. A removal sets Removed and Why. The control process sets Row. All other fields are
// constant while the rule is in its table.
type Rule struct {
	// Slot is the rule's index in the bridge's list of rules. After a removal, the slot stays reserved until
	// the next Apply or Expire.
	Slot                     uint32
	Table                    uint8
	Bridge                   uint8 // number of the rule's bridge
	Priority                 uint16
	IdleTimeout, HardTimeout uint16 // seconds, 0: none
	Importance               uint16
	Flags                    openflow.Flags
	// AddFlags has those flags that only concern the add itself: CheckOverlap and ResetCounts. Flow statistics
	// of OpenFlow 1.3 and later show them with Flags, as in Open vSwitch.
	AddFlags openflow.Flags
	// Removed is true once the rule has left its table.
	Removed bool
	Why     Why // reason of its removal
	// conjunctive is true if the rule has conjunction actions. Such a rule never matches alone.
	conjunctive bool
	// learner is the port whose frame has executed the learn action that added the rule; 0: no learn action
	// added it.
	learner uint32
	// Row is the rule's index in the shared memory for counters (counters.Region.Rules) and in the state file.
	// The control process assigns it.
	Row     uint32
	Cookie  uint64
	Match   openflow.PackedMatch
	Actions []openflow.Action
	// CreatedNS and ModifiedNS are the times of the add and the last change,
	// CLOCK_MONOTONIC.
	CreatedNS, ModifiedNS uint64
	// Packets and Bytes count the frames that matched the rule. UsedNS is the time of
	// the last such frame (CLOCK_MONOTONIC; 0: never).
	Packets, Bytes, UsedNS uint64

	next *Rule // next rule in the classifier with the same hash
}

// Credit adds packets and bytes to the counters of r. usedNS is the time of the last packet
// (CLOCK_MONOTONIC). It needs exclusive access to the tables.
func (r *Rule) Credit(packets, bytes, usedNS uint64) {
	r.Packets += packets
	r.Bytes += bytes
	r.UsedNS = max(r.UsedNS, usedNS)
}

// FlowMod returns a change that adds an equal rule. The result shares the slice Actions with r.
func (r *Rule) FlowMod() openflow.FlowMod {
	return openflow.FlowMod{Command: openflow.Add, Table: r.Table, Priority: r.Priority, Match: r.Match, NewCookie: r.Cookie,
		ModifyCookie: true, IdleTimeout: r.IdleTimeout, HardTimeout: r.HardTimeout, Importance: r.Importance,
		Flags: r.Flags, Actions: r.Actions}
}

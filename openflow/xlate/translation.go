// SPDX-License-Identifier: Apache-2.0

package xlate

import (
	"weft/flowtable"
	"weft/openflow"
	"weft/openflow/fdb"
	"weft/openflow/ofproto"
	"weft/packet"
)

// Translation is a megaflow and the side effects of its frames, such as learned addresses. It points
// to rules and groups of the tables.
type Translation struct {
	// Mask has the bits of the key on which the result depends. All keys that agree on
	// these bits have an equal Translation, except that Mask itself may differ.
	Mask flowtable.Key
	// Actions has 1 to flowtable.MaxActions datapath actions.
	Actions []flowtable.Action
	// Rules lists the matching rules in order, possibly several times.
	Rules []*ofproto.Rule
	// Missed lists the tables in which a look-up found no flow, in order; at most
	// maxMissed.
	Missed []ofproto.BridgeTable
	// Groups lists the executed groups and buckets, in order.
	Groups []ofproto.GroupHit
	// Drop is the reason why the frame is not sent, or DropNone. If the translation has reached a limit
	// (such as DropLoop), some outputs may still be in Actions.
	Drop packet.DropReason
	// Learns has the address that normal learns, at most one in each bridge.
	Learns []fdb.Learn
	// Patches lists the patch ports that the frame crosses and the mirrors that copy it, in order.
	Patches []Crossing
	// Question is an address whose location the translation needs and the switch does not know. The control
	// process asks the central controller (weft-central) for it. If no host has the address, the
	// translation is right as it is.
	Question fdb.Question
	MustAsk  bool // the network sends addresses only on demand (Network.Asked), so the frame needs the answer
	// Request is true if the frame is a guest's request that this host answers itself, such as DHCP. The
	// control process then answers the frame and installs no megaflow.
	Request bool
	// Refused is true if a quota of the input port refused the recirc_id or the Geneve
	// options that the translation needs. The drop is right only while the quota is used up.
	Refused bool
	// Learned lists the flows of learn actions, in order. The control process adds those that the tables
	// lack (Tables.Learned), and refreshes the timeouts of those that the tables have.
	Learned []openflow.FlowMod
	// Finished lists the flows whose timeouts each frame of the megaflow reduces, because of
	// fin_timeout.
	Finished []ofproto.Finished
	// Tables has the tables that the translation searched. It also has tables in which
	// a learn action with a limit counts flows.
	Tables TableSet
	// Addresses are the addresses on which the result depends, in order of use.
	Addresses []fdb.Ref
	// UsedPorts is true if the result depends on which ports exist, or on their state. A dependence
	// on the ports in Actions does not count.
	UsedPorts bool
}

// TraceStep is one step of a translation, as Trace reports it to its hook.
type TraceStep struct {
	Bridge uint8            // bridge of the table
	Depth  int              // nesting of resubmits
	Table  uint8            // table of the look-up or of the actions
	Lookup bool             // look-up in Table; false: an action or a note
	Rule   *ofproto.Rule    // result of the look-up; nil: none
	Action *openflow.Action // action to execute
	Flow   openflow.Flow    // flow before the step
	Note   string           // text of a note, or a remark on a look-up
	Recirc uint32           // recirc_id of a second look-up that the data path makes of Flow; 0: none
}

// SPDX-License-Identifier: Apache-2.0

package openflow

// ActionKind is the kind of an Action.
type ActionKind uint8

// ActionKind names an action of ovs-actions(7). An empty list of actions drops the
// frame.
const (
	ActNone          ActionKind = iota
	ActOutput                   // sends to Port, an ordinary or reserved port; Value is max_len, which has no effect
	ActOutputReg                // sends to the port whose number is in Src
	ActSetField                 // Value/Mask -> Dst, a whole field
	ActLoad                     // Value -> Dst
	ActMove                     // Src -> Dst
	ActModField                 // mod_nw_tos and similar: set the field Dst, if the frame has it
	ActModVLANVID               // mod_vlan_vid: sets the VLAN ID to Value; pushes a tag on an untagged frame
	ActModVLANPCP               // mod_vlan_pcp: sets the VLAN priority to Value; pushes a tag on an untagged frame
	ActPushVLAN                 // pushes a tag with EtherType Value
	ActPopVLAN                  // pops the outer tag if there is one
	ActDecTTL                   // decrements the TTL
	ActGotoTable                // to Table
	ActResubmit                 // resubmit: searches Table (TableAll: the current one) with in_port set to Port
	ActWriteMetadata            // Value/Mask -> metadata
	ActSetTunnel                // Value -> tun_id
	ActClone                    // clone: executes Sub, then undoes its changes of the frame
	ActNote                     // carries Text, without effect
	ActWriteActions             // adds Sub to the action set
	ActClearActions             // empties the action set
	ActGroup                    // Value: the group's number
	ActMeter                    // Value: the meter's number
	ActLearn                    // see Learn
	ActController               // see Controller
	ActCT                       // see CT
	ActCTClear                  // makes the frame untracked
	// fin_timeout: Value holds the idle and the hard timeout that apply after a TCP FIN
	// or RST
	ActFinTimeout
	ActConjunction // conjunction, see Conjunction
	ActPushMPLS    // pushes a label stack entry with EtherType Value
	ActPopMPLS     // pops the outermost label stack entry; Value: the EtherType behind it
	ActDecMPLSTTL  // decrements the TTL of the outermost label stack entry
	ActPushPBB     // prepends an Ethernet header with an I-TAG
	ActPopPBB      // pops the outer Ethernet header and the I-TAG
	ActOutputTrunc // sends the first Value bytes to Port
	ActPush        // pushes Src on the stack
	ActPop         // pops the stack to Dst
	ActExit        // ends the translation; within a bucket only the bucket, behind a patch port only that bridge
	ActMultipath   // stores the number of a link in Dst, see Links
	ActBundle      // sends to a port, or stores its number in Dst unless Dst.Field is FNone; see Links
	ActSetQueue    // chooses queue Value for the outputs behind it
	ActPopQueue    // chooses queue 0
	ActEnqueue     // sends to Port through queue Value
	ActEncap       // puts a header of packet type Value[1] in front of the packet; Value[0]: MD type of an NSH, 0: 1
	ActDecap       // removes the first header; Value is the packet type behind it
	ActCheckLarger // sets the bit Dst to 1 if the frame has more than Value bytes, else to 0
	ActDeleteField // removes the option of the field Dst from the frame
	ActSample      // sends some frames to collectors, see Sample
	ActDecNSHTTL   // decrements the TTL of the network service header
	actionKinds    // number of kinds
)

// Action is one parsed action. Value and Mask are aligned to the lowest bit of Dst.
type Action struct {
	Kind  ActionKind
	Table uint8
	// Wide is true for set_tunnel64 and false for set_tunnel.
	Wide bool
	// Tuple is true for a resubmit that searches with the original tuple of the frame's
	// connection in place of its own addresses, ports and protocol.
	Tuple      bool
	Port       uint32
	Src, Dst   Subfield
	Value      Value128
	Mask       Value128
	Sub        []Action
	Text       string
	Learn      *LearnSpec
	Controller *Controller
	CT         *CTSpec
	Links      *LinkSpec
	TLV        *TLVValue // value of an ActSetField whose Dst is a field tun_metadata
	Sample     *SampleSpec
}

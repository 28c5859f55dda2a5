// SPDX-License-Identifier: Apache-2.0

package openflow

// ActionKind says what an action does. Its values are the constants whose names begin with Act, such as
// ActOutput.
type ActionKind uint8

// Kinds of actions, see ovs-actions(7). There is none for drop: an empty list of actions drops the frame.
const (
	ActNone          ActionKind = iota
	ActOutput                   // sends to Port, an ordinary or reserved port; Value is max_len, which has no effect
	ActOutputReg                // sends to the port whose number is in Src
	ActSetField                 // writes the bits of Value that Mask has to Dst, a whole field
	ActLoad                     // writes Value to Dst
	ActMove                     // copies Src to Dst
	ActModField                 // mod_nw_tos and similar: writes Value to the field Dst, if the frame has it
	ActModVLANVID               // mod_vlan_vid: sets the VLAN ID to Value; pushes a tag on an untagged frame
	ActModVLANPCP               // mod_vlan_pcp: sets the VLAN priority to Value; pushes a tag on an untagged frame
	ActPushVLAN                 // pushes a tag with EtherType Value
	ActPopVLAN                  // pops the outer tag if there is one
	ActDecTTL                   // decrements the TTL; Text has the ids of controllers, see decttl.go
	ActGotoTable                // continues in Table
	ActResubmit                 // resubmit: searches Table (TableAll: the current one) with in_port set to Port
	ActWriteMetadata            // writes the bits of Value that Mask has to the metadata
	ActSetTunnel                // writes Value to tun_id
	ActClone                    // clone: executes Sub, then undoes its changes of the frame
	ActNote                     // carries Text, without effect
	ActWriteActions             // adds Sub to the action set
	ActClearActions             // empties the action set
	ActGroup                    // executes the group with the number Value
	ActMeter                    // passes the frame through the meter with the number Value
	ActLearn                    // adds a flow, whose parts are in the field Learn
	ActController               // sends to an OpenFlow controller; the field Controller has the arguments
	ActCT                       // tracks the frame's connection; the field CT has the arguments
	ActCTClear                  // makes the frame untracked
	// ActFinTimeout shortens the flow's timeouts at a TCP FIN or RST: Value[0] is the new idle timeout,
	// Value[1] the new hard timeout, in seconds; 0: unchanged.
	ActFinTimeout
	ActConjunction // makes the rule a part of a conjunction; the method Conjunction returns the arguments
	ActPushMPLS    // pushes a label stack entry with EtherType Value
	ActPopMPLS     // pops the outermost label stack entry; Value: the EtherType behind it
	ActDecMPLSTTL  // decrements the TTL of the outermost label stack entry
	ActPushPBB     // prepends an Ethernet header with an I-TAG
	ActPopPBB      // pops the outer Ethernet header and the I-TAG
	ActOutputTrunc // sends the first Value bytes to Port
	ActPush        // pushes the value of Src on the translation's stack
	ActPop         // pops the top of that stack into Dst
	ActExit        // ends the translation; within a bucket only the bucket, behind a patch port only that bridge
	ActMultipath   // writes the number of one of several links to Dst; the field Links has the arguments
	ActBundle      // sends to one of several ports, or writes its number to Dst if Dst.Field is not FNone; see Links
	ActSetQueue    // chooses queue Value for the outputs that follow
	ActPopQueue    // chooses queue 0 for the outputs that follow
	ActEnqueue     // sends to Port through queue Value
	ActEncap       // prepends a header of packet type Value[1]; Value[0] is the MD type of an NSH, where 0 means 1
	ActDecap       // removes the first header; Value is the packet type of the header behind it
	ActCheckLarger // sets the bit Dst to 1 if the frame has more than Value bytes, else to 0
	ActDeleteField // removes the Geneve option of Dst, a field tun_metadata, from the frame
	ActSample      // reports some frames to collectors; the field Sample has the arguments
	ActDecNSHTTL   // decrements the TTL of the network service header
	actionKinds    // number of kinds
)

// Action is one parsed action of a flow. Its Kind decides which other fields have a meaning. If the action
// writes the sub-field Dst, bit 0 of Value and of Mask is the lowest bit of Dst.
type Action struct {
	Kind  ActionKind
	Table uint8
	// Wide is true for set_tunnel64 and false for set_tunnel.
	Wide bool
	// Tuple is true for resubmit(PORT,TABLE,ct). The look-up in Table then uses the addresses, ports and
	// protocol of the connection's original direction instead of the frame's own.
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
	TLV        *TLVValue // of an ActSetField whose Dst is a field tun_metadata, in place of Value and Mask
	Sample     *SampleSpec
}

// SPDX-License-Identifier: Apache-2.0

package openflow

// ActionKind is the kind of an Action.
type ActionKind uint8

// Kinds of action, with the names of ovs-actions(7). A drop is an empty list.
const (
	ActNone          ActionKind = iota
	ActOutput                   // to Port, an ordinary or reserved one
	ActOutputReg                // to the port whose number is in Src
	ActSetField                 // Value/Mask -> Dst, a whole field
	ActLoad                     // Value -> Dst
	ActMove                     // Src -> Dst
	ActModField                 // mod_* of Dst, a whole field; no effect on a frame without the field
	ActModVLANVID               // sets the VLAN ID to Value; pushes a tag if there is none
	ActModVLANPCP               // sets the VLAN priority to Value; pushes a tag if there is none
	ActPushVLAN                 // pushes a tag with EtherType Value
	ActPopVLAN                  // pops the outer tag if there is one
	ActDecTTL                   // decrements the TTL
	ActGotoTable                // to Table
	ActResubmit                 // to Table (TableAll: the current one) with in_port Port (PortInPort: unchanged)
	ActWriteMetadata            // Value/Mask -> metadata
	ActSetTunnel                // Value -> tun_id
	ActClone                    // executes Sub and then undoes its changes to the frame
	ActNote                     // carries Text, without effect
	ActWriteActions             // adds Sub to the action set
	ActClearActions             // empties the action set
	ActGroup                    // Value: the group's number
	ActMeter                    // Value: the meter's number
	ActLearn                    // see Learn
	ActController               // see Controller
	ActCT                       // see CT
	ActCTClear                  // makes the frame untracked
	ActFinTimeout               // Value: idle and hard timeout that the flow gets at TCP's FIN or RST
	actionKinds                 // number of kinds
)

// Action is one parsed action. Value and Mask are in the least significant bits, as
// they are written into Dst.
type Action struct {
	Kind  ActionKind
	Table uint8
	// Wide distinguishes set_tunnel64 from set_tunnel.
	Wide       bool
	Port       uint32
	Src, Dst   Subfield
	Value      Value128
	Mask       Value128
	Sub        []Action
	Text       string
	Learn      *LearnSpec
	Controller *Controller
	CT         *CTSpec
}

package openflow

// ActionKind is the kind of an Action.
type ActionKind uint8

// Kinds of action, in ovs-actions(7)'s words. A drop is an empty list.
const (
	ActNone          ActionKind = iota
	ActOutput                   // to Port, an ordinary or standard one
	ActOutputReg                // to the port whose number is in Src
	ActSetField                 // Value/Mask -> Dst, which is a whole field
	ActLoad                     // Value -> Dst
	ActMove                     // Src -> Dst
	ActModField                 // mod_* of Dst, a whole field: no effect where Dst is not there
	ActModVLANVID               // Value, with a tag pushed if there is none
	ActModVLANPCP               // the same
	ActPushVLAN                 // of EtherType Value
	ActPopVLAN                  // if there is a tag
	ActDecTTL                   //
	ActGotoTable                // Table
	ActResubmit                 // to Table (TableAll: the same) as from Port (PortInPort: unchanged)
	ActWriteMetadata            // Value/Mask
	ActSetTunnel                // Value: set_tunnel of tun_id
	ActClone                    // Sub, whose changes end with it
	ActNote                     // Text
	ActWriteActions             // Sub, into the action set
	ActClearActions             // empties the action set
	ActGroup                    // Value: number of the group
	ActMeter                    // Value: number of the meter
	ActLearn                    // Learn
	ActController               // Controller
	ActCT                       // CT
	ActCTClear                  // makes the frame untracked
	ActFinTimeout               // Value: idle and hard timeout of the flow from TCP's FIN or RST on
	actionKinds                 // number of kinds
)

// Action is one parsed action. Value and Mask are in the least significant
// bits, as written into Dst.
type Action struct {
	Kind  ActionKind
	Table uint8
	// Wide tells set_tunnel64 from set_tunnel.
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

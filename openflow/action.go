package openflow

// ActionKind is the kind of an Action.
type ActionKind uint8

// Kinds of action, in ovs-actions(7)'s words.
const (
	ActNone      ActionKind = iota
	ActOutput               // Port: an ordinary or reserved one
	ActOutputReg            // output to the port number in Src
	ActDrop                 // alone; formats as drop
	ActSetField             // Value/Mask -> Dst, all of the field
	ActLoad                 // Value -> Dst, a sub-field
	ActMove                 // Src -> Dst
	ActPushVLAN             // EtherType in Arg
	ActPopVLAN
	ActModVLANVID // Arg
	ActModVLANPCP // Arg
	ActDecTTL
	ActGotoTable     // Table
	ActResubmit      // Port (PortInPort: as it is), Table (TableAll: the current one)
	ActWriteMetadata // Value/Mask
	ActClearActions
	ActWriteActions // Sub
	ActClone        // Sub
	ActNote         // Text
	ActController   // Arg: bytes at most
)

// Subfield is Bits bits of a field from bit Offset (0: the least significant).
type Subfield struct {
	Field  FieldID
	Offset uint8
	Bits   uint8
}

// Value128 is a value of up to 128 bits: [0] is the upper half.
type Value128 [2]uint64

// Action is one parsed action.
type Action struct {
	Kind  ActionKind
	Table uint8
	// Spelling keeps which of the equivalent words was written (mod_dl_src and
	// set_field), for the same text to come back.
	Spelling uint8
	Port     uint32
	Arg      uint32
	Src, Dst Subfield
	Value    Value128 // in the field's least significant bits
	Mask     Value128
	Sub      []Action
	Text     string
}

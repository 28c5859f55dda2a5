package datapath

import (
	"encoding/binary"
	"fmt"

	"weft/conntrack"
	"weft/flowtable"
	"weft/packet"
	"weft/tunnel"
)

// Commands go from control to a worker, upcalls the other way, each one message
// of a shared ring: a 32-bit operation, a 32-bit argument, and a body. Append*
// encode into a caller's buffer; the worker decodes in place. Little endian.
//
// A command has taken effect once the ring's Done count has reached what
// Publish returned after it.

// CommandOp is the operation of a command.
type CommandOp uint32

// Commands.
const (
	// CmdInstall installs a megaflow in slot Arg, which must be free: key, mask,
	// actions.
	CmdInstall CommandOp = iota + 1
	// CmdRemove removes the megaflow of slot Arg. Its statistics stay readable
	// in the slot until the slot is used again.
	CmdRemove
	// CmdRetry resumes the frame held in slot Arg: it is looked up again.
	CmdRetry
	// CmdExecute resumes the frame held in slot Arg with the actions of its
	// body instead of a lookup; nobody's statistics count it.
	CmdExecute
	// CmdDropHeld drops the frame held in slot Arg; the body is a 32-bit
	// packet.DropReason.
	CmdDropHeld
	// CmdTemplate replaces tunnel template Arg by the body.
	CmdTemplate
	// CmdTermination adds or replaces, CmdRemoveTermination removes, entry Arg
	// of the table of vxlan ports that tunnels end in; body: tunnel.Termination.
	CmdTermination
	CmdRemoveTermination
	// CmdInject executes actions on a frame of control's own, as one of port Arg;
	// body: the number of actions (32 bits), the actions, the frame.
	CmdInject
	// CmdTap sets tap Arg; body: Tap.
	CmdTap
	// CmdEndConnections ends connections; body: MaxEnds of conntrack.Ref at most,
	// number and generation of 32 bits each. Those that have changed meanwhile
	// stay.
	CmdEndConnections
	// CmdMeter sets meter Arg, whose bucket is full then; body: cost, depth, frames.
	CmdMeter
	// CmdHold with Arg 1 leaves the receive queues alone until one with Arg 0:
	// nothing is received before every port is there that it may go to.
	CmdHold
)

// UpcallOp is the operation of an upcall.
type UpcallOp uint32

// Upcalls.
const (
	// UpMiss: the frame held in slot Arg matched no megaflow; body: its Key.
	UpMiss UpcallOp = iota + 1
	// UpNeighbour: a frame held in slot Arg waits for tunnel template X to be
	// resolved; body: 32-bit X. Control answers with CmdTemplate and CmdRetry
	// or CmdDropHeld.
	UpNeighbour
	// UpFault: port Arg is broken and no longer polled; body: the reason.
	UpFault
	// UpAnswered: what control makes of a miss that it has answered before older
	// ones, so that the next control process does not answer it again.
	UpAnswered
)

const messageHeader = 8

func appendHeader(buf []byte, op, arg uint32) []byte {
	buf = binary.LittleEndian.AppendUint32(buf, op)
	return binary.LittleEndian.AppendUint32(buf, arg)
}

// AppendCommand encodes a command whose body is given as it is, perhaps nil.
func AppendCommand(buf []byte, op CommandOp, arg uint32, body []byte) []byte {
	return append(appendHeader(buf, uint32(op), arg), body...)
}

// AppendInstall encodes CmdInstall. At most flowtable.MaxActions actions.
func AppendInstall(buf []byte, slot uint32, key, mask *flowtable.Key, actions []flowtable.Action) []byte {
	buf = appendHeader(buf, uint32(CmdInstall), slot)
	buf = appendWords(buf, key[:])
	buf = appendWords(buf, mask[:])
	return appendActions(buf, actions)
}

// AppendExecute encodes CmdExecute.
func AppendExecute(buf []byte, held uint32, actions []flowtable.Action) []byte {
	return appendActions(appendHeader(buf, uint32(CmdExecute), held), actions)
}

// AppendInject encodes CmdInject: port inPort, 0 for none. At most
// flowtable.MaxActions actions and HeldBytes of frame.
func AppendInject(buf []byte, inPort uint32, actions []flowtable.Action, frame []byte) []byte {
	buf = appendHeader(buf, uint32(CmdInject), inPort)
	buf = binary.LittleEndian.AppendUint32(buf, uint32(len(actions)))
	return append(appendActions(buf, actions), frame...)
}

// AppendDropHeld encodes CmdDropHeld.
func AppendDropHeld(buf []byte, held uint32, why packet.DropReason) []byte {
	return binary.LittleEndian.AppendUint32(appendHeader(buf, uint32(CmdDropHeld), held), uint32(why))
}

// AppendTemplate encodes CmdTemplate.
func AppendTemplate(buf []byte, index uint32, t *tunnel.Template) []byte {
	return t.AppendTo(appendHeader(buf, uint32(CmdTemplate), index))
}

// AppendTermination encodes CmdTermination.
func AppendTermination(buf []byte, index uint32, t *tunnel.Termination) []byte {
	return t.AppendTo(appendHeader(buf, uint32(CmdTermination), index))
}

// MaxEnds bounds the connections that one CmdEndConnections ends, so that a pass
// which executes maxCommandsPerPass of them takes less than a millisecond.
const MaxEnds = 64

// AppendEndConnections encodes CmdEndConnections.
func AppendEndConnections(buf []byte, refs []conntrack.Ref) []byte {
	buf = appendHeader(buf, uint32(CmdEndConnections), 0)
	for _, r := range refs {
		buf = binary.LittleEndian.AppendUint32(buf, r.Number)
		buf = binary.LittleEndian.AppendUint32(buf, r.Generation)
	}
	return buf
}

// Upcall is a decoded upcall.
type Upcall struct {
	Op       UpcallOp
	Arg      uint32
	Key      flowtable.Key // UpMiss
	Template uint32        // UpNeighbour
	Reason   string        // UpFault
}

// MissedOn returns the port of a frame that missed; ok is false for other upcalls.
func MissedOn(msg []byte) (no uint32, ok bool) {
	if len(msg) != messageHeader+8*flowtable.KeyWords || UpcallOp(binary.LittleEndian.Uint32(msg)) != UpMiss {
		return 0, false
	}
	return uint32(binary.LittleEndian.Uint64(msg[messageHeader+8*flowtable.WPort:]) >> 32), true
}

// Answered notes in a miss, which is still in the ring, that it is answered.
func Answered(msg []byte) { binary.LittleEndian.PutUint32(msg, uint32(UpAnswered)) }

// ParseUpcall decodes one message of the upcall ring. Control only.
func ParseUpcall(msg []byte) (Upcall, error) {
	if len(msg) < messageHeader {
		return Upcall{}, fmt.Errorf("upcall of %d bytes", len(msg))
	}
	up := Upcall{Op: UpcallOp(binary.LittleEndian.Uint32(msg)), Arg: binary.LittleEndian.Uint32(msg[4:])}
	body := msg[messageHeader:]
	switch {
	case up.Op == UpMiss && len(body) == 8*flowtable.KeyWords:
		readWords(body, up.Key[:])
	case up.Op == UpNeighbour && len(body) == 4:
		up.Template = binary.LittleEndian.Uint32(body)
	case up.Op == UpFault:
		up.Reason = string(body)
	case up.Op == UpAnswered:
	default:
		return Upcall{}, fmt.Errorf("upcall %d with a body of %d bytes", up.Op, len(body))
	}
	return up, nil
}

func appendWords(buf []byte, words []uint64) []byte {
	for _, w := range words {
		buf = binary.LittleEndian.AppendUint64(buf, w)
	}
	return buf
}

func readWords(body []byte, words []uint64) {
	for i := range words {
		words[i] = binary.LittleEndian.Uint64(body[8*i:])
	}
}

const actionBytes = 16

func appendActions(buf []byte, actions []flowtable.Action) []byte {
	for _, a := range actions {
		buf = append(buf, byte(a.Op), 0)
		buf = binary.LittleEndian.AppendUint16(buf, a.U16)
		buf = binary.LittleEndian.AppendUint32(buf, a.U32)
		buf = binary.LittleEndian.AppendUint64(buf, a.U64)
	}
	return buf
}

// readActions decodes into dst's storage, without allocating while it suffices.
func readActions(body []byte, dst []flowtable.Action) []flowtable.Action {
	dst = dst[:0]
	for ; len(body) >= actionBytes; body = body[actionBytes:] {
		dst = append(dst, flowtable.Action{
			Op:  flowtable.Op(body[0]),
			U16: binary.LittleEndian.Uint16(body[2:]),
			U32: binary.LittleEndian.Uint32(body[4:]),
			U64: binary.LittleEndian.Uint64(body[8:]),
		})
	}
	return dst
}

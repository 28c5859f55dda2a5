// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"encoding/binary"
	"fmt"

	"weft/conntrack"
	"weft/flowtable"
	"weft/packet"
	"weft/tunnel"
)

// Commands go from control to a worker, upcalls from a worker to control. Each is one
// message of a shared ring: a 32-bit operation, a 32-bit argument, and a body, all
// little endian. The Append functions encode into a caller's buffer; the worker
// decodes in place.
//
// A command has taken effect once the ring's Done count has reached the value that
// Publish returned after the command was written.

// CommandOp is the operation of a command.
type CommandOp uint32

// Operations of commands.
const (
	// CmdInstall installs a megaflow in slot Arg, which must be free. Body: key,
	// mask, actions.
	CmdInstall CommandOp = iota + 1
	// CmdRemove removes the megaflow of slot Arg. Its statistics stay readable until
	// the slot is used again.
	CmdRemove
	// CmdRetry resumes the frame held in slot Arg, which is looked up again.
	CmdRetry
	// CmdExecute resumes the frame held in slot Arg with the actions of the body,
	// without a look-up. No flow's statistics count the frame.
	CmdExecute
	// CmdDropHeld drops the frame held in slot Arg. Body: a 32-bit packet.DropReason.
	CmdDropHeld
	// CmdTemplate replaces tunnel template Arg by the body.
	CmdTemplate
	// CmdTermination adds or replaces entry Arg of the table of vxlan ports that
	// tunnels end in, CmdRemoveTermination removes it. Body: tunnel.Termination.
	CmdTermination
	CmdRemoveTermination
	// CmdInject executes actions on a frame that control has made, as if it came in
	// on port Arg. Body: the number of actions (32 bits), the actions, the frame.
	CmdInject
	// CmdTap sets tap Arg. Body: Tap.
	CmdTap
	// CmdEndConnections ends connections. Body: at most MaxEnds of conntrack.Ref, a
	// number and a generation of 32 bits each. A connection whose generation has
	// changed meanwhile stays.
	CmdEndConnections
	// CmdMeter sets meter Arg and fills its bucket. Body: cost, depth, frames.
	CmdMeter
	// CmdHold with Arg 1 stops the receive queues until a CmdHold with Arg 0. So no
	// frame is received before every port that it may go to is attached.
	CmdHold
)

// UpcallOp is the operation of an upcall.
type UpcallOp uint32

// Operations of upcalls.
const (
	// UpMiss: the frame held in slot Arg matched no megaflow. Body: its Key.
	UpMiss UpcallOp = iota + 1
	// UpNeighbour: the frame held in slot Arg waits until a tunnel template is
	// resolved. Body: the 32-bit index of the template. Control answers with
	// CmdTemplate and CmdRetry, or with CmdDropHeld.
	UpNeighbour
	// UpFault: port Arg is broken and no longer polled. Body: the reason.
	UpFault
	// UpAnswered replaces UpMiss in the ring once control has answered the miss
	// before older ones, so that the next control process does not answer it again.
	UpAnswered
)

const messageHeader = 8

func appendHeader(buf []byte, op, arg uint32) []byte {
	buf = binary.LittleEndian.AppendUint32(buf, op)
	return binary.LittleEndian.AppendUint32(buf, arg)
}

// AppendCommand encodes a command with the given body, which may be nil.
func AppendCommand(buf []byte, op CommandOp, arg uint32, body []byte) []byte {
	return append(appendHeader(buf, uint32(op), arg), body...)
}

// AppendInstall encodes CmdInstall with at most flowtable.MaxActions actions.
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

// AppendInject encodes CmdInject; inPort 0 stands for no port. It takes at most
// flowtable.MaxActions actions and HeldBytes bytes of frame.
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

// MaxEnds bounds the connections in one CmdEndConnections, so that maxCommandsPerPass
// of them take less than a millisecond.
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
	Key      flowtable.Key // key of the frame; only for UpMiss
	Template uint32        // index of the tunnel template; only for UpNeighbour
	Reason   string        // reason of the fault; only for UpFault
}

// MissedBy returns the sender of an UpMiss as held frames count it: the in-port, or the
// VNI if the frame came through a tunnel. ok is false for other upcalls.
func MissedBy(msg []byte) (sender uint32, ok bool) {
	if len(msg) != messageHeader+8*flowtable.KeyWords || UpcallOp(binary.LittleEndian.Uint32(msg)) != UpMiss {
		return 0, false
	}
	body := msg[messageHeader:]
	var tunnel [flowtable.TunnelWords]uint64
	readWords(body[8*flowtable.WTunID:8*flowtable.WARPSha], tunnel[:])
	return senderOf(uint32(binary.LittleEndian.Uint64(body[8*flowtable.WPort:])>>32), &tunnel), true
}

// Answered marks a miss that is still in the ring as answered.
func Answered(msg []byte) { binary.LittleEndian.PutUint32(msg, uint32(UpAnswered)) }

// ParseUpcall decodes one message of the upcall ring. For control only.
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

// readActions decodes actions into dst's storage. It allocates only if the capacity
// does not suffice.
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

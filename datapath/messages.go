// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"bytes"
	"encoding/binary"
	"fmt"

	"weft/conntrack"
	"weft/flowtable"
	"weft/packet"
	"weft/tunnel"
)

// This file defines the messages between the control process and a worker. Commands go to the worker,
// upcalls come from it. Each is one message of a shared ring: a 32-bit operation, a 32-bit argument
// (Arg in the comments below), and a body, all little endian. The Append functions append an encoded
// message to the caller's buffer. The worker decodes messages in place.
//
// Publish of the command ring returns the number of messages written so far. The worker has executed
// a command when the ring's Done count has reached the number that Publish returned for the command.

// CommandOp is the operation that a command requests of the worker.
type CommandOp uint32

// Operations of commands.
const (
	// CmdInstall installs a megaflow in slot Arg, which must be free. The body is the key, the mask and
	// the actions. Counters.InstallsRefused counts refused megaflows.
	CmdInstall CommandOp = iota + 1
	// CmdRemove removes the megaflow in slot Arg. The megaflow's statistics stay
	// readable until the slot is used again.
	CmdRemove
	// CmdRetry looks up the waiting frame with reference Arg again and executes its actions. If the frame waits
	// for the next hop of a tunnel, it executes only HeldFrame.Then, without a look-up.
	CmdRetry
	// CmdExecute executes the actions in the body, without a look-up, on the waiting frame with reference Arg.
	// The frame does not count in the statistics of any flow.
	CmdExecute
	// CmdDropHeld drops the waiting frame with reference Arg. The body is a 32-bit packet.DropReason. The reason
	// packet.Consumed means that the control process has taken the frame for itself: no drop counter counts it.
	CmdDropHeld
	// CmdTemplate replaces tunnel template Arg by the tunnel.Template in the body.
	CmdTemplate
	// CmdTermination sets entry Arg of the table of local tunnel endpoints; the body
	// is a tunnel.Termination. CmdRemoveTermination removes the entry.
	CmdTermination
	CmdRemoveTermination
	// CmdInject executes actions on a frame that the control process has made, as if
	// the frame had been received on port Arg. The body is the number of actions (32
	// bits), the actions, and the frame.
	CmdInject
	// CmdCapture sets capture Arg and clears its counters. The body is a Capture.
	CmdCapture
	// CmdEndConnections ends tracked connections. The body is a list of at most
	// MaxEnds conntrack.Ref values, each a number and a generation of 32 bits. A
	// connection whose generation has changed meanwhile stays.
	CmdEndConnections
	// CmdMeter sets meter Arg, fills its token bucket and clears its counts. The body is the fields Cost,
	// Depth and Frames of a Meter.
	CmdMeter
	// CmdHold stops the receive queues if Arg is 1, and starts them again if Arg is 0. While an engine process
	// starts, the control process stops the queues until all ports are attached, because a frame for a missing
	// output would be dropped.
	CmdHold
	// CmdBFD begins, changes or ends BFD session Arg. The body is a BFDSet. Only the
	// worker with Config.Sweeps gets it.
	CmdBFD
	// CmdWeight sets the weight of port Arg in the division of the worker's time. The body is a
	// 32-bit number from 1 to MaxWeight. Arg 0 sets the weights of all ports. A port number keeps its
	// weight when its port is detached.
	CmdWeight
)

// UpcallOp says what an upcall reports to the control process.
type UpcallOp uint32

// Operations of upcalls.
const (
	// UpMiss reports that the frame with reference Arg matched no megaflow and waits for an answer. The body is
	// the frame's key, then the raw Geneve options of the frame, if any.
	UpMiss UpcallOp = iota + 1
	// UpNeighbour reports that the frame with reference Arg waits until the next hop of a tunnel template is
	// resolved. The body is the 32-bit index of the template. The control process answers with CmdTemplate and
	// CmdRetry, or with CmdDropHeld.
	UpNeighbour
	// UpFault reports that port Arg is broken and no longer polled. The body is the
	// reason.
	UpFault
	// UpAnswered replaces an UpMiss in the ring when the control process has answered
	// the UpMiss out of order. The next control process then does not answer it again.
	UpAnswered
)

const messageHeader = 8

func appendHeader(buf []byte, op, arg uint32) []byte {
	buf = binary.LittleEndian.AppendUint32(buf, op)
	return binary.LittleEndian.AppendUint32(buf, arg)
}

// AppendCommand appends an encoded command with the given body, which may be nil.
func AppendCommand(buf []byte, op CommandOp, arg uint32, body []byte) []byte {
	return append(appendHeader(buf, uint32(op), arg), body...)
}

// AppendInstall appends an encoded CmdInstall with at most flowtable.MaxActions
// actions.
func AppendInstall(buf []byte, slot uint32, key, mask *flowtable.Key, actions []flowtable.Action) []byte {
	buf = appendHeader(buf, uint32(CmdInstall), slot)
	buf = appendWords(buf, key[:])
	buf = appendWords(buf, mask[:])
	return appendActions(buf, actions)
}

// AppendExecute appends an encoded CmdExecute. "held" is the reference of the waiting frame.
func AppendExecute(buf []byte, held uint32, actions []flowtable.Action) []byte {
	return appendActions(appendHeader(buf, uint32(CmdExecute), held), actions)
}

// AppendInject appends an encoded CmdInject. An inPort of 0 means no port. It accepts
// at most flowtable.MaxActions actions and HeldBytes bytes of frame.
func AppendInject(buf []byte, inPort uint32, actions []flowtable.Action, frame []byte) []byte {
	buf = appendHeader(buf, uint32(CmdInject), inPort)
	buf = binary.LittleEndian.AppendUint32(buf, uint32(len(actions)))
	return append(appendActions(buf, actions), frame...)
}

// AppendDropHeld appends an encoded CmdDropHeld. "held" is the reference of the waiting frame.
func AppendDropHeld(buf []byte, held uint32, reason packet.DropReason) []byte {
	return binary.LittleEndian.AppendUint32(appendHeader(buf, uint32(CmdDropHeld), held), uint32(reason))
}

// AppendTemplate appends an encoded CmdTemplate for the template with this index.
func AppendTemplate(buf []byte, index uint32, t *tunnel.Template) []byte {
	return t.AppendTo(appendHeader(buf, uint32(CmdTemplate), index))
}

// AppendTermination appends an encoded CmdTermination for the table entry with this index.
func AppendTermination(buf []byte, index uint32, t *tunnel.Termination) []byte {
	return t.AppendTo(appendHeader(buf, uint32(CmdTermination), index))
}

// MaxEnds is the largest number of connections in one CmdEndConnections. It limits
// the time that the command takes.
const MaxEnds = 64

// AppendEndConnections appends an encoded CmdEndConnections. It accepts at most MaxEnds connections.
func AppendEndConnections(buf []byte, refs []conntrack.Ref) []byte {
	buf = appendHeader(buf, uint32(CmdEndConnections), 0)
	for _, r := range refs {
		buf = binary.LittleEndian.AppendUint32(buf, r.Number)
		buf = binary.LittleEndian.AppendUint32(buf, r.Generation)
	}
	return buf
}

// Upcall is a decoded message of the upcall ring.
type Upcall struct {
	Op       UpcallOp
	Arg      uint32        // argument; its meaning depends on Op
	Key      flowtable.Key // key of the frame; only for UpMiss
	Options  []byte        // raw Geneve options of the frame, owned by the caller; nil: none; only for UpMiss
	Template uint32        // index of the tunnel template, set only in UpNeighbour
	Reason   string        // reason of the fault; only for UpFault
}

// MissedBy returns the sender of the frame that an UpMiss reports: the frame's input port, or its VNI if it
// came through a tunnel. The number of waiting frames is limited for each sender. ok is false for other
// upcalls.
func MissedBy(msg []byte) (sender uint32, ok bool) {
	if !missLength(len(msg)-messageHeader) || UpcallOp(binary.LittleEndian.Uint32(msg)) != UpMiss {
		return 0, false
	}
	body := msg[messageHeader:]
	var tunnel [flowtable.TunnelWords]uint64
	readWords(body[8*flowtable.WTunID:8*flowtable.WARPSha], tunnel[:])
	return senderOf(uint32(binary.LittleEndian.Uint64(body[8*flowtable.WPort:])>>32), &tunnel), true
}

// missLength reports whether n is a possible length in bytes of an UpMiss body.
func missLength(n int) bool {
	n -= 8 * flowtable.KeyWords
	return n >= 0 && n <= flowtable.MaxTunOptions && n%4 == 0
}

// Answered changes an UpMiss that is still in the ring to UpAnswered. The control process calls it.
func Answered(msg []byte) { binary.LittleEndian.PutUint32(msg, uint32(UpAnswered)) }

// ParseUpcall decodes one message of the upcall ring. Only the control process calls
// it.
func ParseUpcall(msg []byte) (Upcall, error) {
	if len(msg) < messageHeader {
		return Upcall{}, fmt.Errorf("upcall of %d bytes", len(msg))
	}
	up := Upcall{Op: UpcallOp(binary.LittleEndian.Uint32(msg)), Arg: binary.LittleEndian.Uint32(msg[4:])}
	body := msg[messageHeader:]
	switch {
	case up.Op == UpMiss && missLength(len(body)):
		readWords(body, up.Key[:])
		if options := body[8*flowtable.KeyWords:]; len(options) > 0 {
			up.Options = bytes.Clone(options)
		}
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

// readActions decodes the actions in body into dst, whose old elements it overwrites. It allocates only if
// the capacity of dst is too small.
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

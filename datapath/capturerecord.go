// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"encoding/binary"
	"fmt"
	"slices"

	"weft/flowtable"
	"weft/packet"
)

// This file defines the records of captured frames. A worker writes a record to its capture ring for
// each frame that a Capture selects.

// CapturedKind says at which point on its way through the worker a frame was captured.
type CapturedKind uint8

// Kinds of records.
const (
	CapturedIn    CapturedKind = 1 + iota // the frame was received on Port
	CapturedOut                           // the frame was about to be sent to Port
	CapturedDrop                          // the frame was dropped
	CapturedTrace                         // the frame was looked up
)

// CaptureCache says where the actions of a frame were found.
type CaptureCache uint8

// Places where the actions of a frame are found.
const (
	CacheNone     CaptureCache = iota // no table: the frame was not looked up, or the look-up missed
	CacheExact                        // found in the exact-match cache
	CacheMegaflow                     // found by a search of the megaflows
	CacheControl                      // actions sent by the control process for this frame only
)

// CaptureVerdict is what has become of a frame when its record is published, at the end of the batch.
type CaptureVerdict uint8

// Verdicts of a frame.
const (
	VerdictNone      CaptureVerdict = iota
	VerdictSent                     // frame sent to the ports in Outputs; other outputs may have dropped it
	VerdictDropped                  // frame dropped for Reason
	VerdictMissed                   // frame held until the control process answers the miss
	VerdictNeighbour                // frame held until the tunnel's next hop is resolved
	VerdictMerged                   // frame merged into the large frame that precedes it in the batch
)

// Stages of a batch. They are the indexes of Captured.StageNS.
const (
	stageReceive = iota // reading descriptors and headers from the receive queue
	stageParse          // decapsulation and key extraction
	stageLookup
	stageExecute // execution of the actions
	stageSend    // transmission, up to the end of the batch
	stages
)

// StageNames are the names of the stages in Captured.StageNS, for people.
var StageNames = [stages]string{"receive", "parse", "lookup", "execute", "send"}

// VoidCapture is the value of Captured.Capture in a record that the worker has withdrawn. Readers must skip
// such a record.
const VoidCapture = 0xff

// maxCaptureOutputs is the largest number of output ports that a record lists. Captured.OutputCount also
// counts further ones.
const maxCaptureOutputs = 16

// Captured is a captured frame with its verdict: one decoded record of the capture ring.
type Captured struct {
	Worker  int   // number of the worker, set by the reader of the ring
	Capture uint8 // number of the Capture that has selected the frame, or VoidCapture
	Kind    CapturedKind
	Cache   CaptureCache
	Verdict CaptureVerdict
	Reason  packet.DropReason
	// Port is the port at which the frame was captured. InPort is the input port that
	// flows match.
	Port, InPort uint32
	// Outputs has the first sixteen ports to which the frame was sent. OutputCount is
	// the number of all such ports; 255: at least so many.
	Outputs     []uint32
	OutputCount int
	// Slot is the slot of the megaflow found, or flowtable.NoSlot. Masks is the
	// number of masks that the search tried.
	Slot, Masks uint32
	// TimeNS is the time of the record (CLOCK_MONOTONIC). HeldNS is the time at which
	// the frame began to wait for the control process; 0: the frame did not wait.
	TimeNS, HeldNS uint64
	// StageNS are the times in nanoseconds that the stages took for the whole batch.
	// Frames is the number of frames in the batch.
	StageNS [stages]uint32
	Frames  int
	// Note is set only in a record of ControllerPort. It is a number from the flow's action OpController. With
	// this number, the control process finds the data for the packet_in message (xlate.ControllerNote).
	Note uint32
	// Keyed is true if Key is set. The records with a Key are those of kind CapturedTrace, those of SamplePort,
	// and those of ControllerPort for tracked frames.
	Keyed bool
	Key   flowtable.Key
	// Sampled is set only in a record of SamplePort. Actions are set only in a record of kind CapturedTrace:
	// the first maxCapturedActions of the actions found.
	Sampled *Sampled
	Actions []flowtable.Action
	// Len is the frame's length in bytes. Data has the first bytes of the frame, and owns its memory.
	Len  int
	Data []byte
}

// FrameKey returns the key of the captured frame, or nil if the record has none.
func (c *Captured) FrameKey() *flowtable.Key {
	if !c.Keyed {
		return nil
	}
	return &c.Key
}

// captureRecord is a message of the capture ring. It has a header, then the frame's key (only in a
// trace, or if the flags have captureKeyed), then a Sampled (if the flags have captureSampled),
// then the actions (only in a trace), then bytes of the frame. The header's fields are little
// endian. Each line gives offsets in bytes and the size of the fields:
//
//	 0 capture, kind, cache, verdict     1 byte each
//	 4 reason, outputs, frames, flags  1 byte each
//	 8 port   12 in port   16 slot   20 masks   24 length   28 actions or note   32 bits each
//	32 time   40 held                64 bits each
//	48 stages                        5 of 32 bits
//	68 outputs                       16 of 16 bits
type captureRecord []byte

const (
	captureHeader      = 104
	maxCapturedActions = 256 // largest number of actions in a record of a trace; further actions are left out
	captureKeyed       = 1   // flag: the key follows the header
	captureSampled     = 2   // flag: a Sampled follows the key
	captureOutsAt      = 68
	captureStageAt     = 48
)

var _ = [1]struct{}{}[captureHeader-4-captureOutsAt-2*maxCaptureOutputs]

func (r captureRecord) kind() CapturedKind          { return CapturedKind(r[1]) }
func (r captureRecord) cache() CaptureCache         { return CaptureCache(r[2]) }
func (r captureRecord) setCache(c CaptureCache)     { r[2] = byte(c) }
func (r captureRecord) verdict() CaptureVerdict     { return CaptureVerdict(r[3]) }
func (r captureRecord) setVerdict(v CaptureVerdict) { r[3] = byte(v) }

func (r captureRecord) port() uint32 { return binary.LittleEndian.Uint32(r[8:]) }
func (r captureRecord) slot() uint32 { return binary.LittleEndian.Uint32(r[16:]) }

// fill writes the record's fields that are known when the frame is captured, as in Captured: number is
// Port, length is Len, clockNS is TimeNS, and "held" is HeldNS.
func (r captureRecord) fill(number, inPort uint32, length int, clockNS, held uint64) {
	binary.LittleEndian.PutUint32(r[8:], number)
	binary.LittleEndian.PutUint32(r[12:], inPort)
	binary.LittleEndian.PutUint32(r[16:], flowtable.NoSlot)
	binary.LittleEndian.PutUint32(r[24:], uint32(length))
	binary.LittleEndian.PutUint64(r[32:], clockNS)
	binary.LittleEndian.PutUint64(r[40:], held)
}

func (r captureRecord) setLookup(slot, masks uint32, c CaptureCache) {
	binary.LittleEndian.PutUint32(r[16:], slot)
	binary.LittleEndian.PutUint32(r[20:], masks)
	r.setCache(c)
}

// drop writes a drop reason into the record. The verdict of a frame that was also sent
// to another port stays VerdictSent.
func (r captureRecord) drop(reason packet.DropReason) {
	r[4] = byte(reason)
	if r.verdict() != VerdictSent {
		r.setVerdict(VerdictDropped)
	}
}

func (r captureRecord) setNote(note uint32) { binary.LittleEndian.PutUint32(r[28:], note) }

func (r captureRecord) sent(port uint32) {
	r.setVerdict(VerdictSent)
	if r[5] < maxCaptureOutputs {
		binary.LittleEndian.PutUint16(r[captureOutsAt+2*int(r[5]):], uint16(port))
	}
	if r[5] < 255 {
		r[5]++
	}
}

// ParseCapture decodes a message of the capture ring. The result shares no memory
// with msg. Only the control process calls it.
func ParseCapture(msg []byte) (Captured, error) {
	if len(msg) < captureHeader {
		return Captured{}, fmt.Errorf("capture of %d bytes", len(msg))
	}
	le := binary.LittleEndian
	c := Captured{
		Capture: msg[0], Kind: CapturedKind(msg[1]), Cache: CaptureCache(msg[2]), Verdict: CaptureVerdict(msg[3]),
		Reason: packet.DropReason(msg[4]), OutputCount: int(msg[5]), Frames: int(msg[6]),
		Port: le.Uint32(msg[8:]), InPort: le.Uint32(msg[12:]), Slot: le.Uint32(msg[16:]), Masks: le.Uint32(msg[20:]),
		Len: int(le.Uint32(msg[24:])), TimeNS: le.Uint64(msg[32:]), HeldNS: le.Uint64(msg[40:]),
	}
	for i := range c.StageNS {
		c.StageNS[i] = le.Uint32(msg[captureStageAt+4*i:])
	}
	for i := range min(c.OutputCount, maxCaptureOutputs) {
		c.Outputs = append(c.Outputs, uint32(le.Uint16(msg[captureOutsAt+2*i:])))
	}
	actions, body := le.Uint32(msg[28:]), msg[captureHeader:]
	if c.Kind == CapturedOut {
		c.Note = actions
	}
	if c.Keyed = msg[7]&captureKeyed != 0 || c.Kind == CapturedTrace; c.Keyed {
		if len(body) < 8*flowtable.KeyWords {
			return Captured{}, fmt.Errorf("capture of a key in %d bytes", len(body))
		}
		readWords(body, c.Key[:])
		body = body[8*flowtable.KeyWords:]
	}
	if msg[7]&captureSampled != 0 {
		if len(body) < sampledBytes {
			return Captured{}, fmt.Errorf("capture of a sample in %d bytes", len(body))
		}
		s := readSampled(body)
		c.Sampled, body = &s, body[sampledBytes:]
	}
	if c.Kind == CapturedTrace {
		if uint64(len(body)) < uint64(actions)*actionBytes {
			return Captured{}, fmt.Errorf("capture of %d actions in %d bytes", actions, len(body))
		}
		c.Actions = readActions(body[:actions*actionBytes], nil)
		body = body[actions*actionBytes:]
	}
	c.Data = slices.Clone(body)
	return c, nil
}

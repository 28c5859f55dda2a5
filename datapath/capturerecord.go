package datapath

import (
	"encoding/binary"
	"fmt"
	"slices"

	"weft/flowtable"
	"weft/packet"
)

// What a worker writes to its capture ring: one message a frame a tap saw.

// CaptureKind says at which point a frame was seen.
type CaptureKind uint8

// Kinds of capture.
const (
	CaptureIn    CaptureKind = 1 + iota // received on Port
	CaptureOut                          // sent to Port, or to have been
	CaptureDrop                         // dropped
	CaptureTrace                        // looked up
)

// CaptureCache says what answered a lookup.
type CaptureCache uint8

// What answers lookups.
const (
	CacheNone     CaptureCache = iota // nothing: the frame was not looked up, or missed
	CacheExact                        // the exact-match cache
	CacheMegaflow                     // a search of the megaflows
	CacheControl                      // control, for this frame alone
)

// CaptureVerdict says what became of a frame, as far as the record can tell.
type CaptureVerdict uint8

// Verdicts.
const (
	VerdictNone      CaptureVerdict = iota
	VerdictSent                     // to Outputs, at least one of them
	VerdictDropped                  // for Reason
	VerdictMissed                   // held until control has told what to do
	VerdictNeighbour                // held until the tunnel's next hop is known
	VerdictMerged                   // went on as part of the segment before it
)

// Stages of a pass, whose times Capture.StageNS has.
const (
	StageReceive = iota // the frames' descriptors and headers, from the queue
	StageParse          // decapsulation, extraction
	StageLookup
	StageExecute // actions, and outputs that could not wait
	StageSend    // outputs, and the end of the pass
	Stages
)

// StageNames are the stages' names.
var StageNames = [Stages]string{"receive", "parse", "lookup", "execute", "send"}

// VoidTap is the tap of a record that stands for nothing.
const VoidTap = 0xff

// maxCaptureOutputs bounds the outputs that a record names; OutputCount goes on.
const maxCaptureOutputs = 16

// Capture is one decoded record.
type Capture struct {
	Worker  int // for the reader to fill in
	Tap     uint8
	Kind    CaptureKind
	Cache   CaptureCache
	Verdict CaptureVerdict
	Reason  packet.DropReason
	// Port is where the frame was seen, InPort what it is matched as.
	Port, InPort uint32
	// Outputs are the ports it was sent to, OutputCount their number, of which
	// Outputs has the first sixteen.
	Outputs     []uint32
	OutputCount int
	// Slot is the megaflow that was found, flowtable.NoSlot if none; Masks the
	// number of masks tried for it.
	Slot, Masks uint32
	// TimeNS is CLOCK_MONOTONIC; HeldNS the same, since when the frame waited
	// for control, 0 if it did not.
	TimeNS, HeldNS uint64
	// StageNS are the times the stages took for the whole batch of Frames.
	StageNS [Stages]uint32
	Frames  int
	// Key and Actions of a CaptureTrace.
	Key     flowtable.Key
	Actions []flowtable.Action
	// Len is the frame's length, Data its first bytes.
	Len  int
	Data []byte
}

// captureRecord is a message: a header, for a trace key and actions, and bytes
// of the frame. Offsets of the header's fields, little endian:
//
//	 0 tap, kind, cache, verdict     1 byte each
//	 4 reason, outputs, frames, -    1 byte each
//	 8 port   12 in port   16 slot   20 masks   24 length   28 actions   32 bits each
//	32 time   40 held                64 bits each
//	48 stages                        5 of 32 bits
//	68 outputs                       16 of 16 bits
type captureRecord []byte

const (
	captureHeader  = 104
	maxTapActions  = 256 // of a trace's record
	captureOutsAt  = 68
	captureStageAt = 48
)

var _ = [1]struct{}{}[captureHeader-4-captureOutsAt-2*maxCaptureOutputs]

func (r captureRecord) kind() CaptureKind           { return CaptureKind(r[1]) }
func (r captureRecord) cache() CaptureCache         { return CaptureCache(r[2]) }
func (r captureRecord) setCache(c CaptureCache)     { r[2] = byte(c) }
func (r captureRecord) verdict() CaptureVerdict     { return CaptureVerdict(r[3]) }
func (r captureRecord) setVerdict(v CaptureVerdict) { r[3] = byte(v) }

func (r captureRecord) port() uint32 { return binary.LittleEndian.Uint32(r[8:]) }
func (r captureRecord) slot() uint32 { return binary.LittleEndian.Uint32(r[16:]) }

// fill writes what is known of the frame from the start.
func (r captureRecord) fill(no, inPort uint32, length int, at, held uint64) {
	binary.LittleEndian.PutUint32(r[8:], no)
	binary.LittleEndian.PutUint32(r[12:], inPort)
	binary.LittleEndian.PutUint32(r[16:], flowtable.NoSlot)
	binary.LittleEndian.PutUint32(r[24:], uint32(length))
	binary.LittleEndian.PutUint64(r[32:], at)
	binary.LittleEndian.PutUint64(r[40:], held)
}

func (r captureRecord) setLookup(slot, masks uint32, c CaptureCache) {
	binary.LittleEndian.PutUint32(r[16:], slot)
	binary.LittleEndian.PutUint32(r[20:], masks)
	r.setCache(c)
}

// drop notes a reason; a frame that was sent somewhere stays sent.
func (r captureRecord) drop(why packet.DropReason) {
	r[4] = byte(why)
	if r.verdict() != VerdictSent {
		r.setVerdict(VerdictDropped)
	}
}

func (r captureRecord) sent(to uint32) {
	r.setVerdict(VerdictSent)
	if r[5] < maxCaptureOutputs {
		binary.LittleEndian.PutUint16(r[captureOutsAt+2*int(r[5]):], uint16(to))
	}
	if r[5] < 255 {
		r[5]++
	}
}

// ParseCapture decodes a message of the capture ring into copies. Control only.
func ParseCapture(msg []byte) (Capture, error) {
	if len(msg) < captureHeader {
		return Capture{}, fmt.Errorf("capture of %d bytes", len(msg))
	}
	le := binary.LittleEndian
	c := Capture{
		Tap: msg[0], Kind: CaptureKind(msg[1]), Cache: CaptureCache(msg[2]), Verdict: CaptureVerdict(msg[3]),
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
	if c.Kind == CaptureTrace {
		if uint64(len(body)) < 8*flowtable.KeyWords+uint64(actions)*actionBytes {
			return Capture{}, fmt.Errorf("capture of %d actions in %d bytes", actions, len(body))
		}
		readWords(body, c.Key[:])
		body = body[8*flowtable.KeyWords:]
		c.Actions = readActions(body[:actions*actionBytes], nil)
		body = body[actions*actionBytes:]
	}
	c.Data = slices.Clone(body)
	return c, nil
}

package api

import (
	"context"
	"net/url"
	"strconv"
	"time"
)

// Captured is one frame that a capture or a live trace saw.
type Captured struct {
	Time   time.Time `json:"time"`
	Worker int       `json:"worker"`
	// Kind is in (received on Port), out (sent to it, or to have been), drop (by
	// Port's input or output) or trace (looked up).
	Kind string `json:"kind"`
	Port string `json:"port"`
	// InPort is the port the frame is matched as.
	InPort string `json:"in_port"`
	// Verdict is sent, dropped, held-for-control, held-for-neighbour or merged
	// (into a large frame). Reason is of drops; of a frame that was sent to some
	// outputs, of those that failed.
	Verdict string `json:"verdict"`
	Reason  string `json:"reason,omitempty"`
	// Outputs are the first of the ports it was sent to, OutputCount their number.
	Outputs     []string `json:"outputs,omitempty"`
	OutputCount int      `json:"output_count"`
	// HeldUS is how long it had waited for control, in µs.
	HeldUS float64 `json:"held_us,omitempty"`
	Len    int     `json:"len"`
	Data   []byte  `json:"data"` // the first bytes
	// Flow is what the frame is, in the words of a match.
	Flow string `json:"flow"`
	// Lost is the number of frames of this capture lost so far.
	Lost  uint64     `json:"lost"`
	Trace *LiveTrace `json:"trace,omitempty"` // of kind trace
}

// Kinds of Captured.
const (
	CapturedIn    = "in"
	CapturedOut   = "out"
	CapturedDrop  = "drop"
	CapturedTrace = "trace"
)

// Verdicts of Captured.
const (
	VerdictSent      = "sent"
	VerdictDropped   = "dropped"
	VerdictControl   = "held-for-control"
	VerdictNeighbour = "held-for-neighbour"
	VerdictMerged    = "merged"
)

// LiveTrace is what happened to a frame between its receipt and its outputs.
type LiveTrace struct {
	// Cache is what knew the frame: exact, megaflow, or control, which executed it
	// alone. Masks is the number of masks searched for it.
	Cache string `json:"cache"`
	Masks int    `json:"masks"`
	// Megaflow is the match of the entry, "" if it is gone already.
	Megaflow string `json:"megaflow"`
	Actions  string `json:"actions"`
	// Stages took that long for all Frames of the batch the frame was in.
	Stages []StageTime `json:"stages"`
	Frames int         `json:"frames"`
}

// StageTime is the time that a stage of a pass took.
type StageTime struct {
	Name string `json:"name"`
	NS   uint32 `json:"ns"`
}

// CaptureRequest says which frames to capture: those of Port, or with Drops those
// dropped, of Port or anywhere.
type CaptureRequest struct {
	Port  string
	Drops bool
	// Snap is the number of bytes wanted of a frame, Limit the number of frames;
	// 0: all.
	Snap, Limit int
}

// Capture calls each with every frame captured, until it returns an error, ctx
// ends, or the limit is reached. ready is called once the workers heed it.
func (c *Client) Capture(ctx context.Context, r CaptureRequest, ready func(), each func(*Captured) error) error {
	q := url.Values{}
	if r.Port != "" {
		q.Set("port", r.Port)
	}
	if r.Drops {
		q.Set("drops", "true")
	}
	if r.Snap > 0 {
		q.Set("snap", strconv.Itoa(r.Snap))
	}
	if r.Limit > 0 {
		q.Set("limit", strconv.Itoa(r.Limit))
	}
	return stream(ctx, c, "/v1/capture", q, ready, each)
}

// TraceLive calls each with the next frames that match, until it returns an
// error, ctx ends, or limit frames (0: any number) were seen.
func (c *Client) TraceLive(ctx context.Context, match string, limit int, ready func(), each func(*Captured) error) error {
	q := matchQuery(match)
	q.Set("limit", strconv.Itoa(limit))
	return stream(ctx, c, "/v1/trace/live", q, ready, each)
}

// SPDX-License-Identifier: Apache-2.0

package api

import (
	"context"
	"net/url"
	"strconv"
	"time"
)

// Captured is one frame of a capture or a live trace.
type Captured struct {
	Time   time.Time `json:"time"`
	Worker int       `json:"worker"`
	// Kind is the event that was captured: "in" (Port received the frame), "out" (the frame was about
	// to be sent to Port), "drop" (Port has dropped it, on receipt or instead of sending it) or "trace"
	// (the worker has looked up the frame's flow).
	Kind string `json:"kind"`
	Port string `json:"port"`
	// InPort is the input port that flows match. For a frame from a tunnel, this is the tunnel's port.
	InPort string `json:"in_port"`
	// Verdict says what became of the frame: sent, dropped, merged (into a larger frame),
	// held-for-control (it waits for the control process) or held-for-neighbour (it waits for a MAC
	// address). Reason is a drop reason. It is also set if only some of the outputs have dropped the
	// frame.
	Verdict string `json:"verdict"`
	Reason  string `json:"reason,omitempty"`
	// Outputs names the frame's first few output ports. OutputCount counts all of them.
	Outputs     []string `json:"outputs,omitempty"`
	OutputCount int      `json:"output_count"`
	// HeldUS is the time in µs for which the frame waited for the control process to decide about it.
	HeldUS float64 `json:"held_us,omitempty"`
	Len    int     `json:"len"`
	Data   []byte  `json:"data"` // the frame's first bytes, at most CaptureRequest.Snap
	// Flow has the frame's header fields in the syntax of a flow's match.
	Flow string `json:"flow"`
	// Lost is the number of frames that this capture has missed so far, for example because the client
	// reads too slowly.
	Lost  uint64     `json:"lost"`
	Trace *LiveTrace `json:"trace,omitempty"` // set for kind trace
}

// Values of Captured.Kind.
const (
	CapturedIn    = "in"
	CapturedOut   = "out"
	CapturedDrop  = "drop"
	CapturedTrace = "trace"
)

// Values of Captured.Verdict.
const (
	VerdictSent      = "sent"
	VerdictDropped   = "dropped"
	VerdictControl   = "held-for-control"
	VerdictNeighbour = "held-for-neighbour"
	VerdictMerged    = "merged"
)

// LiveTrace describes how a worker processed one frame, from its receipt to its outputs.
type LiveTrace struct {
	// Cache names the cache that had the frame's actions: "exact" or "megaflow". It is "control" if the
	// control process has sent the actions for this frame alone. Masks is the number of megaflow masks
	// that the look-up tried.
	Cache string `json:"cache"`
	Masks int    `json:"masks"`
	// Megaflow is the match of the cache entry, or "" if the entry has been removed.
	Megaflow string `json:"megaflow"`
	Actions  string `json:"actions"`
	// Stages has the time that each stage of the pipeline took. A worker processes several frames
	// together, as a batch, so each time is for the whole batch. Frames is the number of frames in it.
	Stages []StageTime `json:"stages"`
	Frames int         `json:"frames"`
}

// StageTime is the time that one stage of a worker's pipeline took for a batch of frames.
type StageTime struct {
	Name string `json:"name"`
	NS   uint32 `json:"ns"`
}

// CaptureRequest selects the frames to capture. Without Drops, these are the frames of Port. With
// Drops, they are the dropped frames of Port, or of all ports if Port is empty.
type CaptureRequest struct {
	Port  string
	Drops bool
	// Snap is the largest number of bytes to capture of each frame. Limit is the number of frames after
	// which the capture ends. For both, 0 means no limit.
	Snap, Limit int
}

// Capture starts a capture, and calls ready when it is active. It then calls handle with each captured
// frame, until handle returns an error, ctx ends, or the limit is reached.
func (c *Client) Capture(ctx context.Context, r CaptureRequest, ready func(), handle func(*Captured) error) error {
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
	return stream(ctx, c, "/v1/capture", q, ready, handle)
}

// TraceLive starts a live trace, and calls ready when it is active. It then calls handle with each
// frame that match selects, until handle returns an error, ctx ends, or maxFrames frames have come (0:
// no limit).
func (c *Client) TraceLive(ctx context.Context, match string, maxFrames int, ready func(), handle func(*Captured) error) error {
	q := matchQuery(match)
	q.Set("limit", strconv.Itoa(maxFrames))
	return stream(ctx, c, "/v1/trace/live", q, ready, handle)
}

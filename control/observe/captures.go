// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"weft/control/limits"
	"weft/control/usererr"
	"weft/datapath"
	"weft/internal/shm"
)

// A capture makes the workers copy the frames that it selects into capture rings
// (datapath/capture.go). While no client captures, the workers have no capture, and nobody reads the
// rings.

const (
	// captureInterval is the time between two reads of the capture rings.
	captureInterval = 2 * time.Millisecond
	// captureBacklog limits the frames that wait for one client. Further frames count
	// as lost.
	captureBacklog = 4096
	// captureBacklogBytes limits the bytes that wait for one client. Further frames
	// count as lost.
	captureBacklogBytes = 16 << 20
	// captureChunk is the number of frames that are read from a ring in one go. The locks are released
	// afterwards.
	captureChunk = 256
	// mostChunks is the number of chunks (of captureChunk frames) that a full capture ring may have.
	mostChunks = datapath.CaptureRingBytes / 64 / captureChunk
)

// Captures has the sessions of all clients that capture frames. Captures.mu is taken before the lock
// of Engine.Hold.
type Captures struct {
	engine  Engine
	log     *slog.Logger
	lost    atomic.Uint64 // number of frames lost by all ended sessions
	refused atomic.Uint64 // number of sessions refused because MaxCaptures ran

	mu       sync.Mutex
	sessions [datapath.MaxCaptures]*Session
	active   int
	reading  bool
	workers  Workers // the workers whose rings are read
	rings    []*shm.Consumer
}

func NewCaptures(engine Engine, log *slog.Logger) *Captures {
	return &Captures{engine: engine, log: log}
}

// Session is one client's capture.
type Session struct {
	capture datapath.Capture
	index   uint32
	frames  chan datapath.Captured
	bytes   atomic.Int64 // bytes of the frames in the channel
	// number of frames lost because the channel was full: the client did not read fast enough
	lost atomic.Uint64
}

func (s *Session) offer(f datapath.Captured) {
	if s.bytes.Add(int64(len(f.Data))) <= captureBacklogBytes {
		select {
		case s.frames <- f:
			return
		default:
		}
	}
	s.bytes.Add(-int64(len(f.Data)))
	s.lost.Add(1)
}

// Begin starts a session. When it returns, the capture is active in all workers. The caller ends the
// session with End.
func (c *Captures) Begin(capture datapath.Capture) (*Session, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	index := slices.Index(c.sessions[:], nil)
	if index < 0 {
		c.refused.Add(1)
		return nil, usererr.Errorf("%d captures and live traces run already, which is the limit; stop one first", len(c.sessions))
	}
	s := &Session{capture: capture, index: uint32(index), frames: make(chan datapath.Captured, captureBacklog)}
	w, release := c.engine.Hold()
	defer release()
	c.follow(w)
	c.workers.Broadcast(datapath.AppendCapture(nil, s.index, &s.capture))
	// error ignored: the engine has died, and the method follow will send the capture to the next
	// engine
	_ = c.workers.WaitApplied()
	c.sessions[index] = s
	c.active++
	if !c.reading { // if a reader runs for another session, it serves this session too
		c.reading = true
		go c.read()
	}
	return s, nil
}

// End ends a session and removes its capture from the workers. It empties the capture rings, because
// another session may get the session's index, and must not get this session's frames.
func (c *Captures) End(s *Session) {
	c.mu.Lock()
	defer c.mu.Unlock()
	w, release := c.engine.Hold()
	defer release()
	c.follow(w)
	c.lost.Add(c.lostOf(s))
	c.sessions[s.index] = nil
	c.active--
	c.workers.Broadcast(datapath.AppendCapture(nil, s.index, &datapath.Capture{}))
	_ = c.workers.WaitApplied()
	for i := range c.rings {
		// The number of chunks is limited, because frames of other sessions may refill the ring.
		for n := 0; n < mostChunks && c.drain(i); n++ {
		}
	}
}

// Disarm removes all captures from the workers. It is called when the control process takes over a running
// engine, because the earlier control process may have left captures.
func Disarm(w Workers) {
	for i := range uint32(datapath.MaxCaptures) {
		w.Broadcast(datapath.AppendCapture(nil, i, &datapath.Capture{}))
	}
}

func (c *Captures) read() {
	for {
		again, more := c.turn()
		if !again {
			return
		}
		if !more {
			time.Sleep(captureInterval)
		}
	}
}

// turn reads one chunk of frames from each ring. active is false if no session is left; the reader
// then ends. pending is true if a ring may have more frames.
func (c *Captures) turn() (active, pending bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.active == 0 {
		c.reading = false
		return false, false
	}
	w, release := c.engine.Hold()
	defer release()
	c.follow(w)
	for i := range c.rings {
		pending = c.drain(i) || pending
	}
	return true, pending
}

// follow makes w the present workers. If they are those of a new engine, it sends them all captures.
// The caller holds c.mu and Engine.Hold.
func (c *Captures) follow(w Workers) {
	if c.workers == w {
		return
	}
	c.workers, c.rings = w, nil
	for _, sh := range w.Shared() {
		c.rings = append(c.rings, shm.NewConsumer(sh.Captures))
	}
	for _, s := range c.sessions {
		if s != nil {
			c.workers.Broadcast(datapath.AppendCapture(nil, s.index, &s.capture))
		}
	}
}

// drain passes at most captureChunk frames from the ring of worker i to their sessions. It returns
// true if the ring may have more frames.
func (c *Captures) drain(i int) bool {
	ring := c.rings[i]
	defer ring.Release()
	for range captureChunk {
		msg := ring.Next()
		if msg == nil {
			return false
		}
		f, err := datapath.ParseCapture(msg)
		if err != nil {
			c.log.Error("malformed capture record", "worker", i, "error", err)
			continue
		}
		if int(f.Capture) >= len(c.sessions) || c.sessions[f.Capture] == nil {
			continue
		}
		s := c.sessions[f.Capture]
		f.Worker = i
		s.offer(f)
	}
	return true
}

// lostOf returns the number of frames that a session has lost. The caller holds c.mu
// and Engine.Hold.
func (c *Captures) lostOf(s *Session) uint64 {
	n := s.lost.Load()
	for _, sh := range c.workers.Shared() {
		n += atomic.LoadUint64(&sh.CaptureCounters[s.index].Lost)
	}
	return n
}

// Run starts a session, and ends it when it returns. It calls ready when the capture is active. It
// calls handle with each captured frame and the number of frames lost so far, and idle whenever no
// frame waits. Run returns when ctx ends, when one of these functions returns an error, or after
// capture.Limit frames (0: no limit).
func (c *Captures) Run(ctx context.Context, capture datapath.Capture, ready, idle func() error, handle func(f *datapath.Captured, lost uint64) error) error {
	s, err := c.Begin(capture)
	if err != nil {
		return err
	}
	defer c.End(s)
	if err := ready(); err != nil {
		return err
	}
	for seen := uint64(0); capture.Limit == 0 || seen < capture.Limit; seen++ {
		var f datapath.Captured
		select {
		case f = <-s.frames:
		default:
			if err := idle(); err != nil {
				return err
			}
			select {
			case <-ctx.Done():
				return ctx.Err()
			case f = <-s.frames:
			}
		}
		s.bytes.Add(-int64(len(f.Data)))
		if err := handle(&f, c.lostNow(s)); err != nil {
			return err
		}
	}
	return idle()
}

// Counts returns the number of sessions, and the number of frames that all sessions have lost since the
// control process started.
func (c *Captures) Counts() (active int, lost uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	lost = c.lost.Load()
	w, release := c.engine.Hold()
	defer release()
	for _, s := range c.sessions {
		if s != nil && c.workers == w {
			lost += c.lostOf(s)
		}
	}
	return c.active, lost
}

func (c *Captures) lostNow(s *Session) uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	w, release := c.engine.Hold()
	defer release()
	if c.workers != w {
		return s.lost.Load()
	}
	return c.lostOf(s)
}

// LimitRows emits the row of `weft show limits` about capture sessions.
func (c *Captures) LimitRows(emit func(limits.Row)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	emit(limits.Row{Name: "captures", Unit: "streams", Holder: limits.All(),
		Used: uint64(c.active), Limit: datapath.MaxCaptures, Refused: c.refused.Load()})
}

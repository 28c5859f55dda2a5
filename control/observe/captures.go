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

// Captures ask the workers to show frames (datapath/capture.go) and pass them on to the
// clients that asked. Without a client the workers have no tap, and nobody reads their
// rings.

const (
	// captureInterval is the time between two looks at the capture rings while there is
	// a session.
	captureInterval = 2 * time.Millisecond
	// captureBacklog bounds the frames that wait for a client; further frames are lost
	// and counted.
	captureBacklog = 4096
	// captureBacklogBytes bounds the bytes of those frames; further frames are lost, and
	// counted.
	captureBacklogBytes = 16 << 20
	// captureChunk is the number of frames taken from a ring before the workers are
	// released.
	captureChunk = 256
	// mostChunks is the number of chunks in a full ring: no frame takes less than 64
	// bytes of it.
	mostChunks = datapath.CaptureRingBytes / 64 / captureChunk
)

// Captures are the sessions of all taps. mu is taken before the engine is held.
type Captures struct {
	engine  Engine
	log     *slog.Logger
	lost    atomic.Uint64 // frames, of all sessions that have ended
	refused atomic.Uint64 // sessions, for want of a tap

	mu       sync.Mutex
	sessions [datapath.MaxTaps]*Session
	active   int
	reading  bool
	workers  Workers // whose rings are read
	rings    []*shm.Consumer
}

func NewCaptures(engine Engine, log *slog.Logger) *Captures {
	return &Captures{engine: engine, log: log}
}

// Session is one client's tap.
type Session struct {
	tap    datapath.Tap
	index  uint32
	frames chan datapath.Capture
	bytes  atomic.Int64  // of the frames in the channel
	lost   atomic.Uint64 // frames, for want of room in the channel
}

// offer queues a frame for the client, or counts it as lost.
func (s *Session) offer(f datapath.Capture) {
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

// Begin sets a tap in all workers, until End. The tap is in force when it returns.
func (c *Captures) Begin(tap datapath.Tap) (*Session, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	index := slices.Index(c.sessions[:], nil)
	if index < 0 {
		c.refused.Add(1)
		return nil, usererr.Errorf("there are %d captures and live traces already, the most possible; stop one first", len(c.sessions))
	}
	s := &Session{tap: tap, index: uint32(index), frames: make(chan datapath.Capture, captureBacklog)}
	w, release := c.engine.Hold()
	defer release()
	c.follow(w)
	c.workers.Broadcast(datapath.AppendTap(nil, s.index, &s.tap))
	_ = c.workers.WaitApplied() // the next engine is told by follow
	c.sessions[index] = s
	c.active++
	if !c.reading { // or the reader has not yet seen that there was none
		c.reading = true
		go c.read()
	}
	return s, nil
}

// End takes the tap away. Frames that the workers have still shown of it are thrown
// away before another session can have its number.
func (c *Captures) End(s *Session) {
	c.mu.Lock()
	defer c.mu.Unlock()
	w, release := c.engine.Hold()
	defer release()
	c.follow(w)
	c.lost.Add(c.lostOf(s))
	c.sessions[s.index] = nil
	c.active--
	c.workers.Broadcast(datapath.AppendTap(nil, s.index, &datapath.Tap{}))
	_ = c.workers.WaitApplied()
	for i := range c.rings {
		for n := 0; n < mostChunks && c.drain(i); n++ { // others' frames may come as fast
		}
	}
}

// Disarm takes away the taps that an earlier control process has left set.
func Disarm(w Workers) {
	for i := range uint32(datapath.MaxTaps) {
		w.Broadcast(datapath.AppendTap(nil, i, &datapath.Tap{}))
	}
}

// read passes frames on until there is no session.
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

// turn takes a chunk of each ring. more says that there may be more, which waits
// until others had their chance at the locks: it may never end.
func (c *Captures) turn() (again, more bool) {
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
		more = c.drain(i) || more
	}
	return true, more
}

// follow turns to the present engine's workers and sends them all taps. Caller holds mu
// and w.
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
			c.workers.Broadcast(datapath.AppendTap(nil, s.index, &s.tap))
		}
	}
}

// drain passes on what worker i shows, captureChunk frames at most, and reports
// whether there may be more.
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
			c.log.Error("capture makes no sense", "worker", i, "error", err)
			continue
		}
		if int(f.Tap) >= len(c.sessions) || c.sessions[f.Tap] == nil {
			continue
		}
		s := c.sessions[f.Tap]
		f.Worker = i
		s.offer(f)
	}
	return true
}

// lostOf is the number of frames that session s has not seen. Caller holds mu and
// c.workers.
func (c *Captures) lostOf(s *Session) uint64 {
	n := s.lost.Load()
	for _, sh := range c.workers.Shared() {
		n += atomic.LoadUint64(&sh.Taps[s.index].Lost)
	}
	return n
}

// Run calls each with every frame that tap sees and the number of frames lost so far,
// and idle when there is none for the moment, until ctx ends, either fails, or limit
// frames, unless 0, were seen. ready is called once the tap is in force.
func (c *Captures) Run(ctx context.Context, tap datapath.Tap, ready, idle func() error, each func(f *datapath.Capture, lost uint64) error) error {
	s, err := c.Begin(tap)
	if err != nil {
		return err
	}
	defer c.End(s)
	if err := ready(); err != nil {
		return err
	}
	for seen := uint64(0); tap.Limit == 0 || seen < tap.Limit; seen++ {
		var f datapath.Capture
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
		if err := each(&f, c.lostNow(s)); err != nil {
			return err
		}
	}
	return idle()
}

// Counts returns the number of sessions, and the number of frames that they and all
// earlier ones have lost.
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

// LimitRows is a limits.Source: the taps.
func (c *Captures) LimitRows(emit func(limits.Row)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	emit(limits.Row{Name: "captures", Unit: "streams", Holder: limits.All(),
		Used: uint64(c.active), Limit: datapath.MaxTaps, Refused: c.refused.Load()})
}

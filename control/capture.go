package control

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"weft/datapath"
	"weft/internal/shm"
)

// Captures ask the workers to show frames (datapath/capture.go) and pass what
// they show on to whoever asked. Nobody asking, the workers know of no tap and
// nobody reads their rings.

const (
	// captureInterval is the time between two looks at the capture rings while
	// somebody captures.
	captureInterval = 2 * time.Millisecond
	// captureBacklog bounds the frames that wait for a client; further ones are
	// lost, and counted.
	captureBacklog = 4096
	// captureChunk is the number of frames taken from a ring before others get a
	// chance at Daemon.mu.
	captureChunk = 256
	// mostChunks is what a ring can hold of them, whatever the frames: none is shown
	// in less than 64 bytes.
	mostChunks = datapath.CaptureRingBytes / 64 / captureChunk
)

// captures is the daemon's side of all taps. mu comes before Daemon.mu.
type captures struct {
	d       *Daemon
	lost    atomic.Uint64 // frames, of all sessions that have ended
	refused atomic.Uint64 // sessions, for want of a tap

	mu       sync.Mutex
	sessions [datapath.MaxTaps]*captureSession
	active   int
	reading  bool
	workers  *workers // whose rings are read
	rings    []*shm.Consumer
}

// captureSession is one tap of somebody's.
type captureSession struct {
	tap    datapath.Tap
	index  uint32
	frames chan datapath.Capture
	lost   atomic.Uint64 // frames, for want of room in the channel
}

// begin sets a tap in all workers, until end. When it returns, they heed it.
func (c *captures) begin(tap datapath.Tap) (*captureSession, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	index := slices.Index(c.sessions[:], nil)
	if index < 0 {
		c.refused.Add(1)
		return nil, inputf("there are %d captures and live traces already, the most possible; stop one first", len(c.sessions))
	}
	s := &captureSession{tap: tap, index: uint32(index), frames: make(chan datapath.Capture, captureBacklog)}
	c.d.mu.RLock()
	defer c.d.mu.RUnlock()
	c.follow()
	c.workers.Broadcast(datapath.AppendTap(nil, s.index, &s.tap))
	_ = c.workers.settle() // the next engine is told by follow
	c.sessions[index] = s
	c.active++
	if !c.reading { // or the reader has not yet seen that there was none
		c.reading = true
		go c.read()
	}
	return s, nil
}

// end takes the tap away. What the workers still show of it is thrown away
// before another can have its number.
func (c *captures) end(s *captureSession) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.d.mu.RLock()
	defer c.d.mu.RUnlock()
	c.follow()
	c.lost.Add(c.lostOf(s))
	c.sessions[s.index] = nil
	c.active--
	c.workers.Broadcast(datapath.AppendTap(nil, s.index, &datapath.Tap{}))
	_ = c.workers.settle()
	for i := range c.rings {
		for n := 0; n < mostChunks && c.drain(i); n++ { // others' frames may come as fast
		}
	}
}

// disarm takes away the taps that an earlier control process has left set.
func (c *captures) disarm(w *workers) {
	for i := range uint32(datapath.MaxTaps) {
		w.Broadcast(datapath.AppendTap(nil, i, &datapath.Tap{}))
	}
}

// read passes frames on until there is no session.
func (c *captures) read() {
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
func (c *captures) turn() (again, more bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.active == 0 {
		c.reading = false
		return false, false
	}
	c.d.mu.RLock()
	defer c.d.mu.RUnlock()
	c.follow()
	for i := range c.rings {
		more = c.drain(i) || more
	}
	return true, more
}

// follow turns to the present engine's workers and tells them of all taps.
// Caller holds mu and Daemon.mu: the memory of an engine that is gone goes only
// under the latter.
func (c *captures) follow() {
	if c.workers == c.d.workers {
		return
	}
	c.workers, c.rings = c.d.workers, nil
	for _, sh := range c.workers.shared {
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
func (c *captures) drain(i int) bool {
	ring := c.rings[i]
	defer ring.Release()
	for range captureChunk {
		msg := ring.Next()
		if msg == nil {
			return false
		}
		f, err := datapath.ParseCapture(msg)
		if err != nil {
			c.d.log.Error("capture makes no sense", "worker", i, "error", err)
			continue
		}
		if int(f.Tap) >= len(c.sessions) || c.sessions[f.Tap] == nil {
			continue
		}
		s := c.sessions[f.Tap]
		f.Worker = i
		select {
		case s.frames <- f:
		default:
			s.lost.Add(1)
		}
	}
	return true
}

// lostOf is the number of frames that session s has not seen. Caller holds mu
// and Daemon.mu.
func (c *captures) lostOf(s *captureSession) uint64 {
	n := s.lost.Load()
	for _, sh := range c.workers.shared {
		n += atomic.LoadUint64(&sh.Taps[s.index].Lost)
	}
	return n
}

// capture calls each with every frame that tap sees and the number of frames lost
// so far, and idle when there is none for the moment, until ctx ends, either
// fails, or limit frames, unless 0, were seen. ready is called before the first.
func (d *Daemon) capture(ctx context.Context, tap datapath.Tap, ready, idle func() error, each func(f *datapath.Capture, lost uint64) error) error {
	s, err := d.captures.begin(tap)
	if err != nil {
		return err
	}
	defer d.captures.end(s)
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
		if err := each(&f, d.captures.lostNow(s)); err != nil {
			return err
		}
	}
	return idle()
}

// counts returns how many sessions there are, and how many frames all that ever
// were have lost.
func (c *captures) counts() (active int, lost uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	lost = c.lost.Load()
	c.d.mu.RLock()
	defer c.d.mu.RUnlock()
	for _, s := range c.sessions {
		if s != nil && c.workers == c.d.workers {
			lost += c.lostOf(s)
		}
	}
	return c.active, lost
}

func (c *captures) lostNow(s *captureSession) uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.d.mu.RLock()
	defer c.d.mu.RUnlock()
	if c.workers != c.d.workers {
		return s.lost.Load()
	}
	return c.lostOf(s)
}

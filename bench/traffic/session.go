// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"context"
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// session is the state of one end, the client or the server, in one measurement.
type session struct {
	spec   *Spec
	ctl    *control
	test   uint32
	server bool
	clock  offset // difference between the other end's clock and this end's

	conns      []*net.TCPConn // TCP connections, by stream number
	transports []transport    // UDP: one transport for each stream; raw frames: one for all streams
	remote     []int          // ports of the server for the data
	live       live
	progress

	// ending is closed to end the measurement early. measuring is set when the warm-up has ended.
	ending    chan struct{}
	endOnce   sync.Once
	measuring atomic.Bool
}

// errEarly ends the measured phase of a sender early. The sender then reports what it has sent so far.
var errEarly = errors.New("ended early")

// errWarm is the error of a measurement that is stopped before it has measured anything.
var errWarm = errors.New("interrupted before the measurement began")

// endEarly ends the measured phase early, if this end is the sender.
func (s *session) endEarly() { s.endOnce.Do(func() { close(s.ending) }) }

// untilEarly returns a context that also ends when endEarly is called, with the cause errEarly.
func (s *session) untilEarly(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	go func() {
		select {
		case <-s.ending:
			cancel(errEarly)
		case <-ctx.Done():
		}
	}()
	return ctx, func() { cancel(nil) }
}

// phaser sends data or requests until a time limit. It is one phase: the warm-up or, if measured is
// set, the measurement. Only the measurement also ends after Spec.Count frames or requests.
type phaser interface {
	phase(ctx context.Context, measured bool, limit time.Duration) error
}

// streamsOf returns the numbers of the streams that use transport number i.
func (s *session) streamsOf(i int) []int {
	if len(s.transports) > 1 || s.spec.Streams == 1 {
		return []int{i}
	}
	all := make([]int, s.spec.Streams)
	for k := range all {
		all[k] = k
	}
	return all
}

func (s *session) closeData() {
	for _, c := range s.conns {
		if c != nil {
			c.Close()
		}
	}
	for _, l := range s.transports {
		l.close()
	}
}

// together calls f at the same time for each number below n, and joins the errors. An error cancels
// the context of the other calls.
func together(ctx context.Context, n int, f func(ctx context.Context, i int) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	errs := make([]error, n)
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() {
			if errs[i] = f(ctx, i); errs[i] != nil {
				cancel(errs[i])
			}
		})
	}
	all.Wait()
	for _, err := range errs {
		if err != nil && !errors.Is(err, context.Canceled) {
			return err
		}
	}
	return errors.Join(errs...)
}

// sendWatched calls runSender. It stops runSender if the other end fails or asks to end the measurement
// early.
func (s *session) sendWatched(ctx context.Context) (*report, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for {
			select {
			case m, ok := <-s.ctl.messages:
				switch {
				case !ok:
					cancel(errGone)
				case m.Stop && s.server:
					s.endEarly()
					continue
				case m.Error != "":
					cancel(errors.New(m.Error))
				default:
					cancel(errNotDue)
				}
			case <-stop:
			}
			return
		}
	}()
	r, err := s.runSender(ctx)
	close(stop)
	<-stopped
	if err != nil && ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	return r, err
}

// runSender runs the warm-up and the measurement of the sender, and returns the sender's report.
func (s *session) runSender(ctx context.Context) (*report, error) {
	senders := s.senders()
	run := func(ctx context.Context, measured bool, length float64) error {
		defer context.AfterFunc(ctx, func() { // ends a blocked write
			for _, c := range s.conns {
				_ = c.SetDeadline(time.Unix(1, 0))
			}
		})()
		return together(ctx, len(senders), func(ctx context.Context, i int) error {
			return senders[i].phase(ctx, measured, seconds(length))
		})
	}
	s.begin(false, s.spec.Warmup)
	if s.spec.Warmup > 0 {
		if err := run(ctx, false, s.spec.Warmup); err != nil {
			return nil, err
		}
	}
	if err := s.ctl.send(message{Measure: &measure{Bytes: warmBytes(senders)}}); err != nil {
		return nil, err
	}
	s.begin(true, 0)
	s.measuring.Store(true)
	measured, cancel := s.untilEarly(ctx)
	defer cancel()
	watch, start := startWatch(), time.Now()
	if err := run(measured, true, s.spec.Seconds); err != nil && context.Cause(measured) != errEarly {
		return nil, err
	}
	r := &report{Seconds: time.Since(start).Seconds(), CPU: watch.read()}
	s.end()
	for _, c := range s.conns {
		if s.spec.Mode == Stream {
			if err := c.CloseWrite(); err != nil {
				return nil, err
			}
		}
	}
	err := s.addSent(r, senders)
	return r, err
}

func (s *session) senders() (list []phaser) {
	for i := range s.transports {
		if s.spec.Mode == Stream {
			list = append(list, newTransportSender(s.spec, s.transports[i], s.test, s.streamsOf(i), &s.live))
		} else {
			list = append(list, newTransportAsker(s.spec, s.transports[i], s.test, s.streamsOf(i), &s.live))
		}
	}
	for i, c := range s.conns {
		if s.spec.Mode == Stream {
			list = append(list, newTCPSender(s.spec, c, &s.live))
		} else {
			list = append(list, newTCPAsker(s.spec, c, s.askAt(), s.test, i, &s.live))
		}
	}
	return list
}

func warmBytes(senders []phaser) (list []uint64) {
	for _, p := range senders {
		if t, ok := p.(*tcpSender); ok {
			list = append(list, t.sent.Bytes)
		}
	}
	return list
}

// addSent adds the counters of the senders to the report.
func (s *session) addSent(r *report, senders []phaser) (err error) {
	r.Streams = make([]StreamResult, s.spec.Streams)
	times := newHistogram()
	kind := "round trip"
	for i, p := range senders {
		switch p := p.(type) {
		case *transportSender:
			for stream, t := range p.totals() {
				r.Streams[stream].Sent = t
			}
		case *transportAsker:
			for stream, t := range p.totals() {
				plan := p.plans[stream]
				r.Streams[stream] = StreamResult{Sent: t, Received: plan.answers, Lost: plan.lost, Late: plan.strays}
			}
			times.Merge(p.times)
		case *tcpSender:
			r.Streams[i] = StreamResult{Sent: p.sent, Retransmits: retransmits(p.conn)}
		case *tcpAsker:
			r.Streams[i] = StreamResult{Sent: Totals{p.plan.frames, p.plan.bytes}, Received: p.answers}
			times.Merge(p.times)
			if p.conn == nil {
				kind = "connection"
			}
		}
	}
	r.Latency, err = newLatency(kind, times, 0)
	return err
}

// runReceiver receives the data, and returns this end's report and the sender's.
func (s *session) runReceiver(ctx context.Context) (own, sender *report, err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var tcp []*tcpReceiver
	var transports []*transportReceiver
	for _, c := range s.conns {
		tcp = append(tcp, &tcpReceiver{conn: c, live: &s.live})
	}
	for i, l := range s.transports {
		// the receiver needs the difference of its own clock to the sender's, which has the opposite
		// sign
		transports = append(transports, newTransportReceiver(l, s.test, s.streamsOf(i), -s.clock.ahead, &s.live))
	}
	defer context.AfterFunc(ctx, func() { // ends a blocked read
		for _, c := range s.conns {
			_ = c.SetDeadline(time.Unix(1, 0))
		}
	})()
	done := make(chan error, 1)
	go func() {
		err := together(ctx, len(tcp)+len(transports), func(ctx context.Context, i int) error {
			if i < len(tcp) {
				return tcp[i].run()
			}
			return transports[i-len(tcp)].run(ctx)
		})
		done <- err
		if err != nil {
			cancel(err)
		}
	}()
	s.begin(false, s.spec.Warmup)
	warm, start, watch, sender, err := s.followSender(ctx)
	if err != nil {
		cancel(err)
		<-done
		return nil, nil, err
	}
	s.drain(ctx, transports, sender)
	own = &report{CPU: watch.read()}
	s.end()
	if len(transports) > 0 {
		cancel(nil)
	}
	if err := <-done; err != nil && len(transports) == 0 {
		return nil, nil, err
	}
	if err := s.addReceived(own, tcp, transports, warm, start); err != nil {
		return nil, nil, err
	}
	return own, sender, nil
}

// followSender waits until the sender's warm-up has ended, and then until its report comes. warm has
// the bytes that each TCP stream has sent in the warm-up.
func (s *session) followSender(ctx context.Context) (warm []uint64, start time.Time, watch stopwatch, sender *report, err error) {
	m, err := s.ctl.expect(ctx, seconds(s.spec.Warmup)+answerLimit, func(m *message) bool { return m.Measure != nil })
	if err != nil {
		return nil, start, watch, nil, err
	}
	start, watch, warm = time.Now(), startWatch(), m.Measure.Bytes
	s.begin(true, 0)
	s.measuring.Store(true)
	m, err = s.ctl.expect(ctx, seconds(s.spec.Seconds)+answerLimit, func(m *message) bool {
		return m.Report != nil && len(m.Report.Streams) == s.spec.Streams
	})
	return warm, start, watch, m.Report, err
}

// drain waits until all frames that the sender has sent have arrived. It gives up when none has arrived
// for the time "quiet".
func (s *session) drain(ctx context.Context, transports []*transportReceiver, sender *report) {
	sent := uint64(0)
	for _, st := range sender.Streams {
		sent += st.Sent.Frames
	}
	last, since := uint64(0), time.Now()
	for len(transports) > 0 && time.Since(since) < quiet && ctx.Err() == nil {
		counted, seen := uint64(0), uint64(0)
		for _, l := range transports {
			counted += l.done.Load()
			seen += l.seen.Load()
		}
		if counted >= sent {
			return
		}
		if seen != last {
			last, since = seen, time.Now()
		}
		time.Sleep(idleWait / 4)
	}
}

// addReceived adds the counters of the receivers to the report.
func (s *session) addReceived(r *report, tcp []*tcpReceiver, transports []*transportReceiver, warm []uint64, start time.Time) (err error) {
	r.Streams = make([]StreamResult, s.spec.Streams)
	var last time.Time
	later := func(t time.Time) {
		if t.After(last) {
			last = t
		}
	}
	for i, t := range tcp {
		n := t.bytes
		if i < len(warm) {
			n -= min(n, warm[i])
		}
		r.Streams[i].Received.Bytes = n
		later(t.last)
	}
	var delay *hdrhistogram.Histogram
	for _, l := range transports {
		for stream, t := range l.tally {
			r.Streams[stream] = StreamResult{Received: Totals{t.received, t.bytes}, Duplicates: t.duplicates, Reordered: t.reordered,
				Distance: t.distance, Late: t.overtaken, JitterUS: l.jitter[stream].value / 1e3}
		}
		if delay == nil {
			delay = l.delay
		} else {
			delay.Merge(l.delay)
		}
		r.SocketDrops += l.transport.dropped()
		later(l.last)
	}
	if !last.IsZero() {
		r.Seconds = last.Sub(start).Seconds()
	}
	if delay != nil {
		r.Latency, err = newLatency("one way", delay, s.clock.within)
	}
	return err
}

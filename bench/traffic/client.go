// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"time"
)

// Client runs measurements against a Server.
type Client struct {
	// Server is the server's address: HOST, HOST:PORT, unix:PATH or vsock:CID:PORT.
	Server string
	// From is the address of another server, which then acts as the client of Server. If it is "", this
	// process is the client.
	From string
	// Link is the link for raw frames: a device name, or the path of a vhost-user
	// socket.
	Link string
	// Progress is called at the end of each interval of length Every, unless it is nil. Its argument
	// measured is false during the warm-up.
	Progress func(i Interval, measured bool)
	Every    time.Duration
	// Stop ends the measurement early when it is closed. The result has what was measured until then.
	Stop <-chan struct{}
}

// Run runs one measurement. If ctx ends before, Run returns an error.
func (c *Client) Run(ctx context.Context, spec Spec) (*Result, error) {
	if err := spec.Check(); err != nil {
		return nil, err
	}
	if c.Every <= 0 {
		c.Every = time.Second
	}
	if c.From != "" {
		return c.order(ctx, spec)
	}
	var intervals []Interval
	tell := func(i Interval, measured bool) {
		if measured {
			intervals = append(intervals, i)
		}
		if c.Progress != nil {
			c.Progress(i, measured)
		}
	}
	conn, err := dial(ctx, c.Server)
	if err != nil {
		return nil, err
	}
	s := &session{spec: &spec, ctl: newControl(conn), ending: make(chan struct{})}
	defer s.ctl.close()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	go c.stop(ctx, s, cancel)
	s.progress = progress{tell: tell, interval: c.Every, count: &s.live}
	defer s.closeData()
	r, err := c.measure(ctx, s)
	s.end()
	if err != nil {
		if ctx.Err() == nil {
			_ = s.ctl.send(message{Error: err.Error()}) // ignores the error, because the connection may already be broken
		}
		return nil, err
	}
	r.Server, r.Intervals = conn.RemoteAddr().String(), intervals
	return r, nil
}

// stop ends the session's measurement early when c.Stop is closed. It returns when ctx ends.
func (c *Client) stop(ctx context.Context, s *session, cancel context.CancelCauseFunc) {
	select {
	case <-ctx.Done():
		return
	case <-c.Stop:
	}
	switch {
	case !s.measuring.Load():
		cancel(errWarm)
	case s.spec.Reverse:
		_ = s.ctl.send(message{Stop: true}) // error ignored: whoever reads the connection reports its end
	default:
		s.endEarly()
	}
}

func (c *Client) order(ctx context.Context, spec Spec) (*Result, error) {
	conn, err := dial(ctx, c.From)
	if err != nil {
		return nil, err
	}
	ctl := newControl(conn)
	defer ctl.close()
	if err := ctl.send(message{Order: &Order{Server: c.Server, Link: c.Link, Interval: c.Every.Seconds(), Spec: spec}}); err != nil {
		return nil, err
	}
	ended := make(chan struct{})
	defer close(ended)
	go func() {
		select {
		case <-c.Stop:
			_ = ctl.send(message{Stop: true}) // error ignored: the loop below reports the connection's end
		case <-ended:
		}
	}()
	for {
		m, err := ctl.next(ctx, answerLimit+openLimit+seconds(spec.Seconds)+seconds(spec.Warmup))
		switch {
		case err != nil:
			return nil, fmt.Errorf("%s: %w", c.From, err)
		case m.Result != nil:
			return m.Result, nil
		case m.Interval != nil && c.Progress != nil:
			c.Progress(*m.Interval, m.Interval.From >= 0)
		}
	}
}

func (c *Client) measure(ctx context.Context, s *session) (*Result, error) {
	local, remote, network := overNetwork(s.ctl.conn)
	if s.spec.Protocol != Raw && !network {
		return nil, fmt.Errorf("%s over %s; expected the address of a server in the network", strings.ToUpper(s.spec.Protocol), c.Server)
	}
	if s.spec.FrameSizes != nil {
		headers := frameHeaders
		if remote.Is6() {
			headers += 20
		}
		s.spec.Sizes = s.spec.FrameSizes.shorter(headers)
		if err := s.spec.Sizes.within(s.spec.bounds()); err != nil {
			return nil, fmt.Errorf("frames %s leave too little for a payload behind %d bytes of headers: %w", s.spec.FrameSizes, headers, err)
		}
		s.spec.FrameSizes = nil
	}
	var own link
	hello := greeting{Version: version, Spec: *s.spec, Clock: clockName()}
	if s.spec.Protocol == Raw {
		var err error
		if own, err = openLink(c.Link, s.spec); err != nil {
			return nil, err
		}
		s.transports = []transport{own}
		hello.MAC = own.address().String()
	}
	o, err := s.agree(ctx, hello)
	if err != nil {
		return nil, err
	}
	if err := s.open(ctx, own, local, remote, o); err != nil {
		return nil, err
	}
	if err := s.ctl.send(message{Start: &begin{AheadNS: s.clock.ahead.Nanoseconds(), WithinNS: s.clock.within.Nanoseconds()}}); err != nil {
		return nil, err
	}
	if s.spec.Reverse {
		receiver, sender, err := s.runReceiver(ctx)
		if err != nil {
			return nil, err
		}
		r := combine(s.spec, sender, receiver)
		r.Local, r.Remote = receiver.CPU, sender.CPU
		return r, nil
	}
	sender, err := s.sendWatched(ctx)
	if err == nil {
		err = s.ctl.send(message{Report: sender})
	}
	if err != nil {
		return nil, err
	}
	m, err := s.ctl.expect(ctx, answerLimit, func(m *message) bool { return m.Report != nil })
	if err != nil {
		return nil, err
	}
	r := combine(s.spec, sender, m.Report)
	r.Local, r.Remote = sender.CPU, m.Report.CPU
	return r, nil
}

// agree sends the client's greeting, receives the server's offer, and measures how far the two clocks
// differ.
func (s *session) agree(ctx context.Context, hello greeting) (*offer, error) {
	if err := s.ctl.send(message{Hello: &hello}); err != nil {
		return nil, err
	}
	m, err := s.ctl.expect(ctx, answerLimit, func(m *message) bool { return m.Offer != nil })
	if err != nil {
		return nil, err
	}
	s.test, s.remote = m.Offer.Test, m.Offer.Ports
	ports := 1
	switch s.spec.Protocol {
	case UDP:
		ports = s.spec.Streams
	case Raw:
		ports = 0
	}
	if len(s.remote) != ports {
		return nil, fmt.Errorf("the server offers %d ports, expected %d", len(s.remote), ports)
	}
	if hello.Clock != "" && hello.Clock == m.Offer.Clock {
		return m.Offer, nil
	}
	const probes = 16
	for i := range probes {
		before := nowNS()
		if err := s.ctl.send(message{Probe: &before}); err != nil {
			return nil, err
		}
		answer, err := s.ctl.expect(ctx, answerLimit, func(m *message) bool { return m.Probe != nil })
		if err != nil {
			return nil, err
		}
		s.clock.better(i == 0, before, *answer.Probe, nowNS())
	}
	return m.Offer, nil
}

func (s *session) open(ctx context.Context, own link, local, remote netip.Addr, o *offer) error {
	ctx, cancel := context.WithTimeoutCause(ctx, openLimit, errNoHello)
	defer cancel()
	switch s.spec.Protocol {
	case TCP:
		if err := s.dialStreams(ctx, remote); err != nil {
			return err
		}
		_, err := s.ctl.expect(ctx, openLimit, func(m *message) bool { return m.Ready })
		return err
	case UDP:
		for _, port := range s.remote {
			l, err := dialUDP(local, netip.AddrPortFrom(remote, uint16(port)), s.spec)
			if err != nil {
				return err
			}
			s.transports = append(s.transports, l)
		}
	case Raw:
		peer, err := net.ParseMAC(o.MAC)
		if err != nil {
			return fmt.Errorf("the server's hardware address: %w", err)
		}
		own.towards(peer, false, s.spec.Flows)
	}
	greet, stop := context.WithCancel(ctx)
	said := make(chan error, 1)
	go func() {
		said <- together(greet, len(s.transports), func(ctx context.Context, i int) error {
			return hello(ctx, s.transports[i], s.test, s.streamsOf(i))
		})
	}()
	_, err := s.ctl.expect(ctx, openLimit, func(m *message) bool { return m.Ready })
	if err == nil && (s.spec.Reverse || s.spec.Mode != Stream) {
		err = s.hear(ctx, "the server's frames do not arrive here")
	}
	stop()
	if sending := <-said; err == nil {
		err = sending
	}
	return err
}

func (s *session) hear(ctx context.Context, otherwise string) error {
	err := together(ctx, len(s.transports), func(ctx context.Context, i int) error {
		return greeted(ctx, s.transports[i], s.test, s.streamsOf(i))
	})
	if errors.Is(err, errNoHello) {
		return fmt.Errorf("%s: nothing came within %s", otherwise, openLimit)
	}
	return err
}

func (s *session) dialStreams(ctx context.Context, remote netip.Addr) error {
	s.conns = make([]*net.TCPConn, s.spec.Streams)
	if s.spec.Mode == Connect {
		return nil
	}
	for i := range s.conns {
		c, err := dialTCP(ctx, s.askAtAddr(remote), s.spec)
		if err != nil {
			return fmt.Errorf("stream %d: %w", i, err)
		}
		s.conns[i] = c
		if _, err := c.Write(preamble(s.test, i)); err != nil {
			return fmt.Errorf("stream %d: %w", i, err)
		}
	}
	return nil
}

func (s *session) askAt() netip.AddrPort {
	_, remote, _ := overNetwork(s.ctl.conn)
	return s.askAtAddr(remote)
}

func (s *session) askAtAddr(remote netip.Addr) netip.AddrPort {
	return netip.AddrPortFrom(remote, uint16(s.remote[0]))
}

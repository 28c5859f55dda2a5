// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"sync"
	"time"
)

// Server serves several clients at a time, but lets only one of them use the link.
type Server struct {
	// Link is a device name or the path of a vhost-user socket, for raw frames. If it is "", the server
	// refuses raw frames.
	Link string
	// Orders permits messages of type Order from clients that connect over IP. From clients on vsock or
	// a unix socket they are always permitted.
	Orders bool
	Log    *slog.Logger

	linkUse sync.Mutex
}

// Serve serves clients until the listener is closed. It then ends the measurements in
// progress.
func (v *Server) Serve(ctx context.Context, l net.Listener) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(ctx, func() { l.Close() })()
	var all sync.WaitGroup
	defer all.Wait()
	for {
		conn, err := l.Accept()
		if err != nil {
			cancel()
			if errors.Is(err, net.ErrClosed) {
				return nil
			}
			return err
		}
		all.Go(func() { v.serve(ctx, conn) })
	}
}

func (v *Server) serve(ctx context.Context, conn net.Conn) {
	ctl := newControl(conn)
	defer ctl.close()
	log := v.Log.With("client", conn.RemoteAddr().String())
	m, err := ctl.next(ctx, answerLimit)
	switch {
	case err != nil:
	case m.Hello != nil:
		log.Info("measurement", "protocol", m.Hello.Spec.Protocol, "mode", m.Hello.Spec.Mode, "streams", m.Hello.Spec.Streams,
			"sizes", m.Hello.Spec.Sizes.String(), "seconds", m.Hello.Spec.Seconds, "reverse", m.Hello.Spec.Reverse)
		err = v.measure(ctx, ctl, m.Hello)
	case m.Order != nil:
		log.Info("order", "server", m.Order.Server)
		err = v.obey(ctx, ctl, m.Order)
	default:
		err = errors.New("expected a measurement or an order")
	}
	if err != nil {
		log.Warn("failed", "error", err)
		_ = ctl.send(message{Error: err.Error()}) // ignores the error, because the client may have disconnected
	}
}

func (v *Server) obey(ctx context.Context, ctl *control, o *Order) error {
	if _, _, network := overNetwork(ctl.conn); network && !v.Orders {
		return errors.New("this server takes no orders over the network; start it with --orders")
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stop := make(chan struct{})
	go func() { // it ends when the client that sent the Order disconnects
		stopped := false
		for m := range ctl.messages {
			if m.Stop && !stopped {
				stopped = true
				close(stop)
			}
		}
		cancel()
	}()
	c := &Client{Server: o.Server, Link: o.Link, Every: seconds(o.Interval), Stop: stop}
	c.Progress = func(i Interval, _ bool) {
		if ctl.send(message{Interval: &i}) != nil {
			cancel()
		}
	}
	r, err := c.Run(ctx, o.Spec)
	if err != nil {
		return err
	}
	return ctl.send(message{Result: r})
}

func (v *Server) measure(ctx context.Context, ctl *control, g *greeting) error {
	spec := g.Spec
	if g.Version != version {
		return fmt.Errorf("the client speaks version %d, this server %d", g.Version, version)
	}
	if err := spec.Check(); err != nil {
		return err
	}
	s := &session{spec: &spec, ctl: ctl, server: true, test: newTest(), ending: make(chan struct{})}
	defer s.closeData()
	o := &offer{Test: s.test, Clock: clockName()}
	local, _, network := overNetwork(ctl.conn)
	open := func(context.Context) error { return nil }
	switch {
	case spec.Protocol == Raw:
		if v.Link == "" {
			return errors.New("this server has no link for raw frames; start it with --raw DEVICE, or --raw with the path of a vhost-user socket")
		}
		if !v.linkUse.TryLock() {
			return fmt.Errorf("another measurement uses %s", v.Link)
		}
		defer v.linkUse.Unlock()
		own, err := openLink(v.Link, &spec)
		if err != nil {
			return err
		}
		s.transports = []transport{own}
		peer, err := net.ParseMAC(g.MAC)
		if err != nil {
			return fmt.Errorf("the client's hardware address: %w", err)
		}
		own.towards(peer, true, spec.Flows)
		o.MAC = own.address().String()
	case !network:
		return errors.New("TCP and UDP need a client that comes over the network")
	case spec.Protocol == UDP:
		fds := make([]int, spec.Streams)
		for i := range fds {
			var port int
			var err error
			if fds[i], port, err = listenUDP(local, spec.SocketBuffer); err != nil {
				return err
			}
			o.Ports = append(o.Ports, port)
		}
		open = func(ctx context.Context) error { return s.acceptTransports(ctx, fds) }
	default:
		l, err := net.ListenTCP("tcp", &net.TCPAddr{IP: local.AsSlice(), Zone: local.Zone()})
		if err != nil {
			return err
		}
		defer l.Close()
		o.Ports = []int{l.Addr().(*net.TCPAddr).Port}
		if spec.Mode == Connect {
			if err := s.ready(ctx, o, open); err != nil {
				return err
			}
			return s.answerRequests(ctx, l)
		}
		open = func(context.Context) (err error) {
			s.conns, err = acceptTCP(l, s.test, &spec, time.Now().Add(openLimit))
			return err
		}
	}
	if err := s.ready(ctx, o, open); err != nil {
		return err
	}
	return s.serve(ctx)
}

// newTest returns a random number that marks the frames of one measurement.
func newTest() uint32 {
	var b [4]byte
	rand.Read(b[:])
	return binary.BigEndian.Uint32(b[:])
}

// acceptTransports makes a transport of each UDP socket in fds, connected to the sender of its first
// datagram.
func (s *session) acceptTransports(ctx context.Context, fds []int) error {
	s.transports = make([]transport, len(fds))
	deadline := time.Now().Add(openLimit)
	err := together(ctx, len(fds), func(ctx context.Context, i int) (err error) {
		expired := func() bool { return ctx.Err() != nil || time.Now().After(deadline) }
		s.transports[i], err = acceptUDP(fds[i], s.test, expired, s.spec)
		return err
	})
	if err != nil {
		var opened []transport
		for _, l := range s.transports {
			if l != nil {
				opened = append(opened, l)
			}
		}
		s.transports = opened
	}
	return err
}

// ready prepares the server's end, and returns when the client's Start has come. It sends hello frames
// on all transports meanwhile.
func (s *session) ready(ctx context.Context, o *offer, open func(context.Context) error) error {
	if err := s.ctl.send(message{Offer: o}); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	opened := make(chan error, 1)
	said := make(chan struct{}) // closed after the last hello frame
	go func() {
		defer close(said)
		err := open(ctx)
		if err != nil {
			opened <- err
			return
		}
		var greeting sync.WaitGroup
		greeting.Go(func() {
			_ = together(ctx, len(s.transports), func(ctx context.Context, i int) error { // the end that misses hello frames reports it
				return hello(ctx, s.transports[i], s.test, s.streamsOf(i))
			})
		})
		if !s.spec.Reverse || s.spec.Mode != Stream {
			limited, cancel := context.WithTimeout(ctx, openLimit)
			err = s.hear(limited, "the client's frames do not arrive here")
			cancel()
		}
		opened <- err
		greeting.Wait()
	}()
	defer func() {
		cancel()
		<-said
	}()
	for {
		select {
		case err := <-opened:
			if err == nil {
				err = s.ctl.send(message{Ready: true})
			}
			if err != nil {
				return err
			}
		case m, ok := <-s.ctl.messages:
			switch {
			case !ok:
				return errGone
			case m.Error != "":
				return errors.New(m.Error)
			case m.Probe != nil:
				at := nowNS()
				if err := s.ctl.send(message{Probe: &at}); err != nil {
					return err
				}
			case m.Start != nil:
				// AheadNS is how far the server's clock is ahead of the client's. s.clock is the
				// reverse: how far the client's clock is ahead, which is the other end here.
				s.clock = offset{ahead: -time.Duration(m.Start.AheadNS), within: time.Duration(m.Start.WithinNS)}
				return nil
			default:
				return errNotDue
			}
		}
	}
}

func (s *session) serve(ctx context.Context) error {
	switch {
	case s.spec.Mode != Stream:
		return s.answerRequests(ctx, nil)
	case s.spec.Reverse:
		r, err := s.sendWatched(ctx)
		if err == nil {
			err = s.ctl.send(message{Report: r})
		}
		if err == nil {
			_, _ = s.ctl.next(ctx, answerLimit) // waits until the client has read all reports
		}
		return err
	}
	own, _, err := s.runReceiver(ctx)
	if err != nil {
		return err
	}
	return s.ctl.send(message{Report: own})
}

// answerRequests answers requests until the client's report comes. If l is not nil, each request has a
// connection of its own.
func (s *session) answerRequests(ctx context.Context, l *net.TCPListener) error {
	serving, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	defer context.AfterFunc(serving, func() {
		for _, c := range s.conns {
			_ = c.SetDeadline(time.Unix(1, 0))
		}
		if l != nil {
			l.Close()
		}
	})()
	done := make(chan error, 1)
	go func() {
		err := together(serving, len(s.conns)+len(s.transports), func(ctx context.Context, i int) error {
			if i < len(s.conns) {
				return serveTCP(s.conns[i], s.spec.Response, false, &s.live)
			}
			return answerTransport(ctx, s.transports[i-len(s.conns)], s.test, s.spec.Response, &s.live)
		})
		if err != nil && serving.Err() == nil {
			stop(err)
		}
		done <- err
	}()
	if l != nil {
		go s.answerConnections(l)
	}
	limit := seconds(s.spec.Seconds) + seconds(s.spec.Warmup) + answerLimit
	_, err := s.ctl.expect(serving, limit, func(m *message) bool { return m.Measure != nil })
	watch := startWatch()
	if err == nil {
		_, err = s.ctl.expect(serving, limit, func(m *message) bool { return m.Report != nil })
	}
	own := &report{CPU: watch.read()}
	for _, l := range s.transports {
		own.SocketDrops += l.dropped()
	}
	stop(nil)
	<-done
	if err != nil {
		return err
	}
	return s.ctl.send(message{Report: own})
}

// answerConnections answers one request on each connection of the listener, until the listener is
// closed.
func (s *session) answerConnections(l *net.TCPListener) {
	for {
		c, err := l.AcceptTCP()
		if err != nil {
			return
		}
		go func() {
			defer c.Close()
			_ = c.SetDeadline(time.Now().Add(answerLimit))
			var head [preambleLen]byte
			if _, err := io.ReadFull(c, head[:]); err == nil && binary.BigEndian.Uint32(head[:]) == s.test {
				_ = serveTCP(c, s.spec.Response, true, &s.live) // the client reports the error
			}
		}()
	}
}

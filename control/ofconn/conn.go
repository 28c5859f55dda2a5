// SPDX-License-Identifier: Apache-2.0

package ofconn

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"weft/openflow"
	"weft/openflow/ofp"
)

// Conn is one OpenFlow connection. The goroutine that reads from it owns all fields for
// which no other owner is named.
type Conn struct {
	service    *Service
	net        net.Conn
	reader     *bufio.Reader
	name, peer string
	role       Role
	origin     origin
	holder     string // name under which the connection is counted
	entered    uint64 // number of the connection, in order of Service.enter; set there
	greeted    bool   // the peer has said hello; guarded by Service.mu
	// controller is the controller to which the switch connected; nil: the peer has connected to
	// the switch.
	controller *controller
	version    ofp.Version
	// tableInCommand is true if OpenFlow 1.0's flow_mods of this peer have the table's number in
	// the field command.
	tableInCommand bool
	bundles        bundles
	config         ofp.SwitchConfig
	heard          atomic.Int64 // time at which the switch got the last message, or ended its request if that is later, in ns since 1970
	handling       atomic.Bool  // a request is in progress

	// showing is locked while a new flow monitor gets the flows that exist already, and while an
	// event is written. So no event about a flow arrives before the flow itself. The lock is taken
	// before the locks of the switch.
	showing sync.Mutex
	writing sync.Mutex // held during the write of a message, so that messages do not mix

	// mu guards the fields below. It is taken after the locks of the switch. The callers of post,
	// setWatching, updateWatching, wantsEvents and accepts hold mu.
	mu       sync.Mutex
	events   []event
	bytes    int // bytes that the queued events count
	wake     chan struct{}
	ended    bool
	ready    bool // the hello messages were exchanged, and the version is known
	async    ofp.AsyncConfig
	master   ofp.Role // OpenFlow role of the peer, if it is a controller
	missLen  uint16   // largest number of bytes of a frame in a packet_in
	format   ofp.PacketInFormat
	nxm      bool // the peer wants flow_removed in Nicira's form
	id       uint16
	monitors map[uint32]*monitor
	watching bool // the connection counts in Service.watchers
	// changeXID is the xid of the request that is changing flows now. It has a meaning only while
	// Service.author is this connection. abbreviated is true after the peer got the abbreviated event
	// for this request (OFPFME_ABBREV).
	changeXID   uint32
	abbreviated bool

	dropped atomic.Uint64 // number of frames dropped because the peer did not read
}

// defaultMissLen is the number of bytes of a frame that a controller gets by default
// (OpenFlow 1.0, 5.3.2).
const defaultMissLen = 128

func newConn(s *Service, nc net.Conn, peer string, role Role) *Conn {
	name := peer
	if a := nc.RemoteAddr(); a != nil && a.String() != "" && a.String() != "@" {
		name = a.Network() + ":" + a.String()
	}
	c := &Conn{service: s, net: nc, peer: peer, name: name, role: role, reader: bufio.NewReaderSize(newEagerReader(nc), readBuffer),
		wake: make(chan struct{}, 1), master: ofp.RoleEqual, monitors: map[uint32]*monitor{}}
	c.bundles = bundles{conn: c, open: map[uint32]*bundle{}}
	return c
}

func (c *Conn) serve() {
	defer c.end()
	err := c.negotiate()
	if err == nil {
		var events sync.WaitGroup
		events.Go(c.sendEvents)
		probing, stop := context.WithCancel(context.Background())
		if c.origin == remote {
			go c.probe(probing)
		}
		err = c.read()
		stop()
		c.end()
		events.Wait()
	}
	switch {
	case err == nil, errors.Is(err, io.EOF), errors.Is(err, net.ErrClosed):
		return
	case errors.Is(err, os.ErrDeadlineExceeded):
		c.service.counts.Stalled.Add(1)
	default:
		c.service.counts.Failed.Add(1)
	}
	c.service.log.Info("OpenFlow connection ended", "peer", c.name, "error", err)
}

func (c *Conn) end() {
	c.net.Close()
	c.bundles.end()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ended = true
	c.events, c.bytes = nil, 0
	c.setWatching(false)
	c.service.monitors.add(c.holder, -len(c.monitors))
	c.monitors = map[uint32]*monitor{}
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// serveUntilEnd serves the connection until it ends. Then the workers stop sending frames for
// controllers if no other connection wants any.
func (c *Conn) serveUntilEnd() {
	c.serve()
	c.service.followFrames()
}

// negotiate does the TLS handshake, exchanges hello messages and chooses the OpenFlow
// version, all within helloTimeout.
func (c *Conn) negotiate() error {
	end := time.Now().Add(c.service.setup.helloTimeout)
	if secure, ok := c.net.(*tls.Conn); ok {
		_ = c.net.SetDeadline(end) // set before the first write, which would do the handshake without a deadline
		if err := secure.Handshake(); err != nil {
			return err
		}
	}
	if err := c.write(ofp.AppendHello(nil, 0)); err != nil {
		return err
	}
	_ = c.net.SetReadDeadline(end)
	hello, err := ofp.ReadMessage(c.reader, nil)
	if err != nil {
		return err
	}
	h := ofp.ReadHeader(hello)
	if h.Type != ofp.TypeHello {
		return fmt.Errorf("the first message is of type %d, not a hello", h.Type)
	}
	v, ok := ofp.Negotiate(hello, nil)
	if !ok {
		_ = c.write(ofp.AppendError(nil, min(h.Version, openflow.Version15), openflow.ErrHelloIncompatible, hello))
		return fmt.Errorf("no version in common: the peer offers up to %d", h.Version)
	}
	_ = c.net.SetReadDeadline(time.Time{})
	if !c.service.greet(c) {
		return net.ErrClosed
	}
	c.version = v
	c.begin(v)
	c.service.notePorts()
	c.service.followFrames()
	if c.controller != nil {
		c.service.log.Info("OpenFlow controller connected", "controller", c.controller.target)
		c.controller.noteState(func(s *ControllerState) { s.Since, s.Problem = time.Now(), "" })
		c.controller.setConnected(true)
	}
	return nil
}

// begin lets the connection receive events, encoded for version v.
func (c *Conn) begin(v ofp.Version) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ready, c.async = true, ofp.DefaultAsync(v)
	if c.controller != nil {
		c.missLen = defaultMissLen
	}
	c.updateWatching()
}

func (c *Conn) read() error {
	var buf []byte
	for {
		m, err := ofp.ReadMessage(c.reader, buf)
		if err != nil {
			return err
		}
		buf = m[:0]
		began := time.Now()
		c.handling.Store(true)
		c.service.counts.Messages.Add(1)
		if err := c.handle(m); err != nil {
			return err
		}
		if time.Since(began) > time.Second {
			c.bundles.touch()
		}
		c.heard.Store(time.Now().UnixNano()) // stored before handling becomes false, because silent reads handling first
		c.handling.Store(false)
	}
}

// identify finds the kind of a request, and adds the bridge's present map of Geneve options to the
// fields tun_metadata (TLV map).
func (c *Conn) identify(m []byte) (ofp.Request, error) {
	r, err := ofp.Identify(m)
	r.TLVs = c.service.setup.Switch.TLVs()
	return r, err
}

func (c *Conn) handle(m []byte) error {
	if ofp.Version(m[0]) != c.version {
		return c.refuse(m, &openflow.CodedError{Code: openflow.ErrBadVersion, Text: fmt.Sprintf("message of version %d: expected %d", m[0], c.version)})
	}
	r, err := c.identify(m)
	if err != nil {
		return c.refuse(m, err)
	}
	h := handlers[r.Kind]
	switch {
	case h.handle == nil:
		return c.refuse(m, &openflow.CodedError{Code: openflow.ErrBadType, Text: fmt.Sprintf("message of type %d: expected a request", r.Type)})
	case h.changes && c.role < Write:
		return c.refuse(m, &openflow.CodedError{Code: openflow.ErrRequestEPERM, Text: c.peer + " may only read"})
	case h.changes && c.isSlave():
		return c.refuse(m, &openflow.CodedError{Code: openflow.ErrIsSlave, Text: "a slave may only read"})
	case r.More && !h.parts:
		return c.refuse(m, &openflow.CodedError{Code: openflow.ErrMultipartOverflow, Text: "expected a request in one message"})
	}
	if err := h.handle(c, &r); err != nil {
		return c.fail(m, err)
	}
	return nil
}

// fail answers a failed request m with an OpenFlow error. It returns an error, which
// ends the connection, if the connection itself has failed.
func (c *Conn) fail(m []byte, err error) error {
	var coded *openflow.CodedError
	if errors.As(err, &coded) {
		return c.refuse(m, coded)
	}
	var network net.Error
	if errors.As(err, &network) || errors.Is(err, net.ErrClosed) || errors.Is(err, io.ErrShortWrite) {
		return err
	}
	c.service.log.Error("OpenFlow request failed", "peer", c.name, "error", err)
	return c.refuse(m, &openflow.CodedError{Code: openflow.ErrRequestEPERM, Text: err.Error()})
}

// refuse sends the peer an OpenFlow error about the request m, and counts it.
func (c *Conn) refuse(m []byte, err error) error {
	var coded *openflow.CodedError
	if !errors.As(err, &coded) {
		coded = &openflow.CodedError{Code: openflow.ErrBadType, Text: err.Error()}
	}
	c.service.counts.Errors.Add(1)
	c.service.log.Debug("OpenFlow request refused", "peer", c.name, "error", coded.Text)
	return c.write(ofp.AppendError(nil, c.version, coded.Code, m))
}

func (c *Conn) write(b []byte) error {
	if len(b) == 0 {
		return nil
	}
	c.writing.Lock()
	defer c.writing.Unlock()
	_ = c.net.SetWriteDeadline(time.Now().Add(writeTimeout))
	_, err := c.net.Write(b)
	return err
}

func (c *Conn) writeAll(r *ofp.Reply) error {
	for _, m := range r.Messages() {
		if err := c.write(m); err != nil {
			return err
		}
	}
	if r.Omitted > 0 {
		c.service.log.Warn("OpenFlow reply lacks entries that exceed 64 KiB", "peer", c.name, "entries", r.Omitted)
	}
	return nil
}

func (c *Conn) isSlave() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.master == ofp.RoleSlave
}

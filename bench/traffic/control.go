// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/mdlayher/vsock"
	"golang.org/x/sys/unix"
)

// DefaultPort is the TCP port on which a server listens by default.
const DefaultPort = 5210

// version is the version of the protocol between client and server.
const version = 1

// Time limits of a control connection.
const (
	dialLimit   = 5 * time.Second
	answerLimit = 10 * time.Second // time limit for a message that the other end should send at once
	openLimit   = 5 * time.Second  // time limit for data connections, and for the first frames to arrive
)

// message is a JSON object with one field set. A measurement has these messages, in this order:
//
//	client  Hello
//	server  Offer, or Error
//	client  Probe, several times; the server answers each with a Probe
//	server  Ready, when the data connections are open
//	client  Start
//	sender  Measure, at the end of its warm-up
//	sender  Report, at the end of the measurement
//	server  Report, if the client is the sender
//
// The sender is the end that sends the data: the client, or the server if Spec.Reverse is set.
type message struct {
	Hello   *greeting `json:"hello,omitempty"`
	Offer   *offer    `json:"offer,omitempty"`
	Probe   *int64    `json:"probe,omitempty"` // reading of the server's clock, in the server's answer
	Ready   bool      `json:"ready,omitempty"`
	Start   *begin    `json:"start,omitempty"`
	Measure *measure  `json:"measure,omitempty"`
	Report  *report   `json:"report,omitempty"`
	Error   string    `json:"error,omitempty"`
	Stop    bool      `json:"stop,omitempty"` // from the receiver of the data: the sender ends early and reports

	// A client sends Order to a server. The server answers with an Interval at the end of each
	// interval, and then with a Result.
	Order    *Order    `json:"order,omitempty"`
	Interval *Interval `json:"interval,omitempty"`
	Result   *Result   `json:"result,omitempty"`
}

type greeting struct {
	Version int    `json:"version"`
	Spec    Spec   `json:"spec"`
	Clock   string `json:"clock"`
	MAC     string `json:"mac,omitempty"` // MAC address of the client's link, for raw frames
}

type offer struct {
	Test  uint32 `json:"test"`
	Ports []int  `json:"ports,omitempty"` // TCP: one port; UDP: one port for each stream
	Clock string `json:"clock"`
	MAC   string `json:"mac,omitempty"`
}

// begin starts the measurement. It tells the server the clock offset, which a receiving server needs.
type begin struct {
	AheadNS  int64 `json:"server_ahead_ns"` // lead of the server's clock over the client's
	WithinNS int64 `json:"within_ns"`
}

// measure ends the sender's warm-up.
type measure struct {
	Bytes []uint64 `json:"bytes,omitempty"` // bytes that each TCP stream has sent during the warm-up
}

// Order asks a server to act as the client of another server, and to return the result.
type Order struct {
	Server   string  `json:"server"`
	Link     string  `json:"link,omitempty"`
	Interval float64 `json:"interval_seconds"`
	Spec     Spec    `json:"spec"`
}

var (
	errGone    = errors.New("the other end has gone")
	errForeign = errors.New("what answers there is no weft bench: is it another program's port?")
	errNotDue  = errors.New("the other end says what is not due; is it another version?")
)

// control is one end of the control connection, which carries the messages between client and server.
type control struct {
	conn     net.Conn
	messages chan message
	err      error // why the connection ended; valid after the channel messages is closed
}

func newControl(conn net.Conn) *control {
	c := &control{conn: conn, messages: make(chan message, 16)}
	go func() {
		defer close(c.messages)
		d := json.NewDecoder(conn)
		for {
			var m message
			if c.err = d.Decode(&m); c.err != nil {
				return
			}
			c.messages <- m
		}
	}()
	return c
}

func (c *control) close() {
	c.conn.Close()
	for range c.messages { // until the reading goroutine ends
	}
}

func (c *control) send(m message) error {
	if err := c.conn.SetWriteDeadline(time.Now().Add(answerLimit)); err != nil {
		return err
	}
	return named(json.NewEncoder(c.conn).Encode(m))
}

func named(err error) error {
	if errors.As(err, new(*json.SyntaxError)) || errors.As(err, new(*json.UnmarshalTypeError)) {
		return errForeign
	}
	for _, gone := range []error{io.EOF, net.ErrClosed, unix.ECONNRESET, unix.EPIPE} {
		if errors.Is(err, gone) {
			return errGone
		}
	}
	return err
}

func (c *control) next(ctx context.Context, limit time.Duration) (message, error) {
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case m, ok := <-c.messages:
		switch {
		case !ok:
			return m, named(c.err)
		case m.Error != "":
			return m, errors.New(m.Error)
		}
		return m, nil
	case <-timer.C:
		return message{}, fmt.Errorf("the other end has said nothing for %s", limit)
	case <-ctx.Done():
		return message{}, context.Cause(ctx)
	}
}

func (c *control) expect(ctx context.Context, limit time.Duration, ok func(*message) bool) (message, error) {
	m, err := c.next(ctx, limit)
	if err == nil && !ok(&m) {
		err = errNotDue
	}
	return m, err
}

// Listen opens a listener for clients at an address: HOST:PORT, :PORT, unix:PATH or
// vsock:PORT.
func Listen(address string) (net.Listener, error) {
	if path, ok := strings.CutPrefix(address, "unix:"); ok {
		return net.Listen("unix", path)
	}
	if port, ok := strings.CutPrefix(address, "vsock:"); ok {
		n, err := strconv.ParseUint(port, 10, 32)
		if err != nil {
			return nil, fmt.Errorf("%s: expected vsock:PORT", address)
		}
		return vsock.Listen(uint32(n), nil)
	}
	if _, port, err := net.SplitHostPort(address); err != nil || port == "" {
		return nil, fmt.Errorf("%s: expected ADDRESS:PORT, :PORT, unix:PATH or vsock:PORT", address)
	}
	if err := CheckPort(address); err != nil {
		return nil, err
	}
	return net.Listen("tcp", address)
}

// CheckPort returns an error if the port of an address HOST:PORT is a number above 65535.
func CheckPort(address string) error {
	_, port, _ := net.SplitHostPort(address)
	if n, err := strconv.Atoi(port); err == nil && n > 65535 {
		return fmt.Errorf("%s: expected a port of at most 65535", address)
	}
	return nil
}

// dial connects to the server at an address: HOST, HOST:PORT, unix:PATH or
// vsock:CID:PORT.
func dial(ctx context.Context, server string) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, dialLimit)
	defer cancel()
	d := new(net.Dialer)
	if path, ok := strings.CutPrefix(server, "unix:"); ok {
		return d.DialContext(ctx, "unix", path)
	}
	if rest, ok := strings.CutPrefix(server, "vsock:"); ok {
		cid, port, _ := strings.Cut(rest, ":")
		c, err1 := strconv.ParseUint(cid, 10, 32)
		p, err2 := strconv.ParseUint(port, 10, 32)
		if err := errors.Join(err1, err2); err != nil {
			return nil, fmt.Errorf("%s: expected vsock:CID:PORT", server)
		}
		return vsock.Dial(uint32(c), uint32(p), nil)
	}
	conn, err := d.DialContext(ctx, "tcp", withPort(server))
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, context.DeadlineExceeded):
		return nil, fmt.Errorf("no answer from %s within %s", withPort(server), dialLimit)
	case err != nil:
		return nil, fmt.Errorf("%w; is weft bench server running there?", err)
	}
	return conn, nil
}

func withPort(server string) string {
	if _, _, err := net.SplitHostPort(server); err == nil {
		return server
	}
	return net.JoinHostPort(strings.Trim(server, "[]"), strconv.Itoa(DefaultPort))
}

// overNetwork returns both IP addresses of a control connection. ok is false for a connection that
// does not use IP.
func overNetwork(conn net.Conn) (local, remote netip.Addr, ok bool) {
	l, ok1 := conn.LocalAddr().(*net.TCPAddr)
	r, ok2 := conn.RemoteAddr().(*net.TCPAddr)
	if !ok1 || !ok2 {
		return local, remote, false
	}
	return l.AddrPort().Addr().Unmap(), r.AddrPort().Addr().Unmap(), true
}

// zone returns the interface index for the zone of an IPv6 address, which is a name or a number. It
// returns 0 if there is no zone or no interface of this name.
func zone(name string) uint32 {
	if name == "" {
		return 0
	}
	if dev, err := net.InterfaceByName(name); err == nil {
		return uint32(dev.Index)
	}
	n, _ := strconv.ParseUint(name, 10, 32)
	return uint32(n)
}

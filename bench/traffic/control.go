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
	answerLimit = 10 * time.Second // how long to wait for a message that the other end should send at once
	openLimit   = 5 * time.Second  // time limit for opening the data's connections, and for the first frames
)

// message is one message between client and server: a JSON object with one field set.
// The messages are sent in this order:
//
//	client  Hello                Probe...   (data opens)          Start   then, by who
//	server         Offer or Error      Probe...            Ready          sends, Report
//
// The end that sends the data or the requests sends Measure when its warm-up is over,
// and Report when it is done. If the server receives data or answers requests, it
// sends the last Report.
type message struct {
	Hello   *greeting `json:"hello,omitempty"`
	Offer   *offer    `json:"offer,omitempty"`
	Probe   *int64    `json:"probe,omitempty"` // value of the server's clock, in the server's answer
	Ready   bool      `json:"ready,omitempty"`
	Start   *begin    `json:"start,omitempty"`
	Measure *measure  `json:"measure,omitempty"`
	Report  *report   `json:"report,omitempty"`
	Error   string    `json:"error,omitempty"`

	// Order asks a server to act as the client of another server. The answer consists
	// of Intervals and a Result.
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
	Ports []int  `json:"ports,omitempty"` // TCP: one port; UDP: a port for each stream
	Clock string `json:"clock"`
	MAC   string `json:"mac,omitempty"`
}

// begin starts the measurement. It has the clock offset that the client measured,
// because the server needs it if it receives.
type begin struct {
	AheadNS  int64 `json:"server_ahead_ns"` // how far the server's clock is ahead of the client's clock
	WithinNS int64 `json:"within_ns"`
}

// measure is the sender's message that the warm-up is over.
type measure struct {
	Bytes []uint64 `json:"bytes,omitempty"` // bytes that each TCP stream has sent in the warm-up
}

// Order asks a server to act as the client of another server.
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

// control is one end of the connection over which client and server exchange
// messages.
type control struct {
	conn net.Conn
	in   chan message
	err  error // reason for the end of the connection; valid once in is closed
}

func newControl(conn net.Conn) *control {
	c := &control{conn: conn, in: make(chan message, 16)}
	go func() {
		defer close(c.in)
		d := json.NewDecoder(conn)
		for {
			var m message
			if c.err = d.Decode(&m); c.err != nil {
				return
			}
			c.in <- m
		}
	}()
	return c
}

// close closes the connection and discards unread messages.
func (c *control) close() {
	c.conn.Close()
	for range c.in { // until the reading goroutine ends
	}
}

func (c *control) send(m message) error {
	if err := c.conn.SetWriteDeadline(time.Now().Add(answerLimit)); err != nil {
		return err
	}
	return named(json.NewEncoder(c.conn).Encode(m))
}

// named turns an error of the kernel or of the JSON decoder into a clear error for
// users. It returns other errors unchanged.
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

// next returns the other end's next message, or an error if none arrives within the
// time limit.
func (c *control) next(ctx context.Context, limit time.Duration) (message, error) {
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case m, ok := <-c.in:
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

// expect returns the other end's next message. It returns an error if the function ok
// does not accept this message.
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
	return net.Listen("tcp", address)
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

// overNetwork returns the local and the remote IP address of a control connection. ok
// is false if the connection does not use IP, and data cannot take the same path.
func overNetwork(conn net.Conn) (local, remote netip.Addr, ok bool) {
	l, ok1 := conn.LocalAddr().(*net.TCPAddr)
	r, ok2 := conn.RemoteAddr().(*net.TCPAddr)
	if !ok1 || !ok2 {
		return local, remote, false
	}
	return l.AddrPort().Addr().Unmap(), r.AddrPort().Addr().Unmap(), true
}

// zone returns the interface index of an IPv6 zone.
func zone(name string) uint32 {
	if name == "" {
		return 0
	}
	if dev, err := net.InterfaceByName(name); err == nil {
		return uint32(dev.Index)
	}
	n, _ := strconv.ParseUint(name, 10, 32) // an unknown zone becomes 0, which the kernel refuses
	return uint32(n)
}

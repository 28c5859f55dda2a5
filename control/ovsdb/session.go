// SPDX-License-Identifier: Apache-2.0

package ovsdb

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"time"

	"weft/control/loop"
	"weft/control/usererr"
)

const (
	dialTimeout = 5 * time.Second
	// callTimeout limits the wait for an answer. ovsdb-server answers a transaction after it
	// has written it to the disk.
	callTimeout = 30 * time.Second
	// probeInterval is the silence after which the client asks a TCP server for an echo. After another
	// probeInterval it closes the connection. A unix socket needs no probe.
	probeInterval = 5 * time.Second
	// maxMessage limits a message of the server in bytes; the rows of 10,000 ports take about 20 MiB.
	// maxQueued limits the bytes of notifications that wait to be applied. At either limit the session
	// ends.
	maxMessage = 64 << 20
	maxQueued  = 64 << 20
)

// CheckTarget returns an error unless the target names an ovsdb-server: unix:PATH,
// tcp:HOST:PORT or ssl:HOST:PORT.
func CheckTarget(target string) error {
	_, _, _, err := parseTarget(target)
	return err
}

func parseTarget(target string) (network, address string, encrypted bool, err error) {
	word, rest, _ := strings.Cut(target, ":")
	switch {
	case word == "unix" && rest != "":
		return "unix", rest, false, nil
	case word == "tcp" || word == "ssl":
		if _, _, err := net.SplitHostPort(rest); err == nil {
			return "tcp", rest, word == "ssl", nil
		}
	}
	return "", "", false, usererr.Errorf("%s: expected unix:PATH, tcp:HOST:PORT or ssl:HOST:PORT of an ovsdb-server", target)
}

// Certificates returns the switch's own certificate and the authority for servers' certificates.
type Certificates func() (*tls.Config, error)

// session is a connection to an ovsdb-server that speaks JSON-RPC 1.0 (RFC 7047 section 4). A goroutine
// of the session reads; the goroutine of Run sends requests.
type session struct {
	conn   net.Conn
	probed bool

	mostMessage, mostQueued int // limits; tests lower them

	mu      sync.Mutex
	next    int64
	waiting map[int64]chan message
	queue   []message // notifications in the order of arrival
	queued  int       // bytes of the queued notifications' parameters
	err     error     // why the session has ended; valid after "ended" is closed

	arrived chan struct{} // wakes the goroutine that waits for notifications; capacity 1
	ended   chan struct{} // closed at the end of the session
	heard   chan struct{} // tells probe that a message has arrived; capacity 1
}

// message is a request, a notification or a reply of JSON-RPC 1.0. A notification has the ID null.
type message struct {
	Method string          `json:"method"`
	Params json.RawMessage `json:"params"`
	ID     json.RawMessage `json:"id"`
	Result json.RawMessage `json:"result"`
	Error  json.RawMessage `json:"error"`
}

// dial connects to a server. certificates is called only for a target with ssl:.
func dial(ctx context.Context, target string, certificates Certificates) (*session, error) {
	network, address, encrypted, err := parseTarget(target)
	if err != nil {
		return nil, err
	}
	var config *tls.Config
	if encrypted {
		if config, err = certificates(); err != nil {
			return nil, err
		}
	}
	ctx, stop := context.WithTimeout(ctx, dialTimeout) // also limits the TLS handshake
	defer stop()
	conn, err := new(net.Dialer).DialContext(ctx, network, address)
	if err == nil && encrypted {
		conn, err = handshake(ctx, conn, config)
	}
	if err != nil {
		return nil, err
	}
	s := &session{conn: conn, probed: network == "tcp", mostMessage: maxMessage, mostQueued: maxQueued, waiting: map[int64]chan message{},
		arrived: make(chan struct{}, 1), ended: make(chan struct{}), heard: make(chan struct{}, 1)}
	go s.read()
	if s.probed {
		go s.probe()
	}
	return s, nil
}

func handshake(ctx context.Context, conn net.Conn, config *tls.Config) (net.Conn, error) {
	encrypted := tls.Client(conn, config)
	if err := encrypted.HandshakeContext(ctx); err != nil {
		conn.Close()
		return nil, err
	}
	return encrypted, nil
}

func (s *session) close() { s.conn.Close() }

// read receives messages until the connection ends.
func (s *session) read() {
	limited := &messageReader{r: bufio.NewReaderSize(s.conn, 64<<10), limit: s.mostMessage}
	d := json.NewDecoder(limited)
	var err error
	for err == nil {
		limited.left = limited.limit
		var m message
		if err = d.Decode(&m); err == nil {
			err = s.take(m)
		}
	}
	s.conn.Close()
	s.mu.Lock()
	s.err = err
	s.mu.Unlock()
	close(s.ended)
}

// messageReader reads at most "left" more bytes, so that one message cannot fill the memory.
type messageReader struct {
	r           io.Reader
	limit, left int
}

func (l *messageReader) Read(b []byte) (int, error) {
	if l.left <= 0 {
		return 0, fmt.Errorf("%w: a message has more than %d bytes", errTooMuch, l.limit)
	}
	n, err := l.r.Read(b[:min(len(b), l.left)])
	l.left -= n
	return n, err
}

// errTooMuch ends a session if the server sends more than the limits allow, such as maxMessage and
// maxRows.
var errTooMuch = errors.New("the server sends too much")

func (s *session) take(m message) error {
	loop.Notify(s.heard)
	if m.Method == "echo" {
		return s.send(map[string]any{"id": m.ID, "result": m.Params, "error": nil})
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if m.Method != "" {
		if s.queued += len(m.Params); s.queued > s.mostQueued {
			return fmt.Errorf("%w: more than %d bytes of notifications wait", errTooMuch, s.mostQueued)
		}
		s.queue = append(s.queue, m)
		loop.Notify(s.arrived)
		return nil
	}
	var id int64
	if json.Unmarshal(m.ID, &id) != nil {
		return fmt.Errorf("a reply has the unknown id %s", m.ID)
	}
	if reply := s.waiting[id]; reply != nil {
		reply <- m
		delete(s.waiting, id)
	}
	return nil
}

// notifications returns the notifications that have arrived since the last call.
func (s *session) notifications() []message {
	s.mu.Lock()
	defer s.mu.Unlock()
	list := s.queue
	s.queue, s.queued = nil, 0
	return list
}

func (s *session) send(m any) error {
	text, err := json.Marshal(m)
	if err != nil {
		return err
	}
	_ = s.conn.SetWriteDeadline(time.Now().Add(callTimeout)) // error ignored: Write returns it too
	_, err = s.conn.Write(text)
	return err
}

// call sends a request, waits for the reply at most callTimeout, and decodes the result.
func (s *session) call(method string, result any, params ...any) error {
	reply := make(chan message, 1)
	s.mu.Lock()
	s.next++
	id := s.next
	s.waiting[id] = reply
	s.mu.Unlock()
	if params == nil {
		params = []any{}
	}
	if err := s.send(map[string]any{"method": method, "params": params, "id": id}); err != nil {
		return fmt.Errorf("%s: %w", method, err)
	}
	timer := time.NewTimer(callTimeout)
	defer timer.Stop()
	select {
	case m := <-reply:
		if len(m.Error) > 0 && string(m.Error) != "null" {
			return fmt.Errorf("%s: the server answers %s", method, m.Error)
		}
		return json.Unmarshal(m.Result, result)
	case <-s.ended:
		return fmt.Errorf("%s: %w", method, s.reason())
	case <-timer.C:
		return fmt.Errorf("%s: no answer within %v", method, callTimeout)
	}
}

func (s *session) reason() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err
}

// probe closes the connection if the server is silent and does not answer an echo.
func (s *session) probe() {
	tick := time.NewTicker(probeInterval)
	defer tick.Stop()
	asked := false
	for {
		select {
		case <-s.ended:
			return
		case <-s.heard:
			asked = false
			tick.Reset(probeInterval)
		case <-tick.C:
			if asked {
				s.conn.Close()
				return
			}
			asked = true
			go func() { _ = s.call("echo", new(json.RawMessage)) }() // error ignored: only the silence counts
		}
	}
}

// errCanceled ends a session because the server has canceled its monitor, for example after a change of
// the schema.
var errCanceled = errors.New("the server has canceled the monitor")

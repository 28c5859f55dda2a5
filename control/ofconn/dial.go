// SPDX-License-Identifier: Apache-2.0

package ofconn

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"strings"
	"sync/atomic"
	"time"

	"weft/openflow/ofp"
)

const (
	// The pause between two attempts to connect doubles from minBackoff to
	// maxBackoff.
	minBackoff = time.Second
	maxBackoff = 8 * time.Second
	// dialTimeout limits the time of one attempt to connect.
	dialTimeout = 5 * time.Second
	// After probeInterval without a message, the switch sends an echo request to the
	// controller. After another probeInterval without an answer, the connection ends.
	probeInterval = 5 * time.Second
)

type controller struct {
	service   *Service
	target    string                      // tcp:HOST:PORT or ssl:HOST:PORT
	config    func() (*tls.Config, error) // of an ssl target, see Following.TLS
	stop      context.CancelFunc
	connected atomic.Bool     // true from the controller's hello on
	state     ControllerState // without Connected and Role; guarded by Service.mu
}

// ParseTarget parses WORD:HOST:PORT, the address of a controller or a listener. WORD must be
// one of "allowed", such as tcp.
func ParseTarget(text string, allowed ...string) (word, address string, err error) {
	word, address, ok := strings.Cut(text, ":")
	for _, a := range allowed {
		if ok && a == word {
			if _, _, err := net.SplitHostPort(address); err != nil {
				break
			}
			return word, address, nil
		}
	}
	return "", "", fmt.Errorf("%s: expected %s:HOST:PORT", text, strings.Join(allowed, ":HOST:PORT or "))
}

// ParseListener parses ptcp:PORT[:HOST] or pssl:PORT[:HOST]. The default host is
// 127.0.0.1.
func ParseListener(text string) (word, address string, err error) {
	word, rest, _ := strings.Cut(text, ":")
	port, host, _ := strings.Cut(rest, ":")
	if word != "ptcp" && word != "pssl" || port == "" || strings.Trim(port, "0123456789") != "" {
		return "", "", fmt.Errorf("%s: expected ptcp:PORT[:HOST] or pssl:PORT[:HOST]", text)
	}
	host = strings.Trim(host, "[]")
	if host == "" {
		host = "127.0.0.1"
	}
	return word, net.JoinHostPort(host, port), nil
}

// Listen opens the listener that text describes (see ParseListener). A pssl listener
// needs config.
func Listen(text string, config *tls.Config) (net.Listener, error) {
	word, address, err := ParseListener(text)
	if err != nil {
		return nil, err
	}
	l, err := net.Listen("tcp", address)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", text, err)
	}
	if word == "pssl" {
		return tls.NewListener(l, config), nil
	}
	return l, nil
}

func (c *controller) run(ctx context.Context) {
	backoff, logged := minBackoff, ""
	for ctx.Err() == nil {
		began := time.Now()
		err := c.session(ctx)
		if err == nil {
			logged = ""
		} else if ctx.Err() == nil {
			c.noteState(func(s *ControllerState) { s.Problem = err.Error() })
			if logged != err.Error() { // each reason has one line, however often the controller is tried
				logged = err.Error()
				c.service.log.Info("OpenFlow controller", "controller", c.target, "error", err)
			}
		}
		if time.Since(began) > maxBackoff {
			backoff = minBackoff
		}
		select {
		case <-ctx.Done():
		case <-time.After(backoff):
		}
		backoff = min(2*backoff, maxBackoff)
	}
}

func (c *controller) session(ctx context.Context) error {
	word, address, err := ParseTarget(c.target, "tcp", "ssl")
	if err != nil {
		return err
	}
	var config *tls.Config
	if word == "ssl" {
		if config, err = c.config(); err != nil {
			return err
		}
	}
	dialer := net.Dialer{Timeout: dialTimeout}
	nc, err := dialer.DialContext(ctx, "tcp", address)
	if err != nil {
		return err
	}
	if word == "ssl" {
		secure := tls.Client(nc, config)
		deadline, cancel := context.WithTimeout(ctx, dialTimeout)
		err := secure.HandshakeContext(deadline)
		cancel()
		if err != nil {
			nc.Close()
			return err
		}
		nc = secure
	}
	conn := newConn(c.service, nc, c.target, Write)
	conn.controller, conn.holder = c, c.target
	if !c.service.enter(conn) {
		nc.Close()
		return net.ErrClosed
	}
	defer c.service.leave(conn)
	probing, stop := context.WithCancel(ctx)
	defer stop()
	defer context.AfterFunc(ctx, func() { nc.Close() })()
	go conn.probe(probing)
	defer c.disconnected()
	conn.serveUntilEnd()
	return nil
}

func (c *controller) setConnected(connected bool) {
	c.connected.Store(connected)
	c.service.signal()
}

func (c *controller) disconnected() {
	c.noteState(func(s *ControllerState) {
		if c.connected.Load() {
			s.Since, s.Problem = time.Now(), "the connection has ended"
		}
	})
	c.setConnected(false)
}

// probeInterval returns the time without a message after which the switch sends the peer an
// echo request.
func (c *Conn) probeInterval() time.Duration {
	if c.origin == remote {
		return c.service.setup.remoteProbeInterval
	}
	return probeInterval
}

// silent reports whether the peer has sent nothing for probeInterval. It returns false while a
// request of the peer is in progress, because the switch reads the peer's next message only
// afterwards.
func (c *Conn) silent(now time.Time) bool {
	return !c.handling.Load() && now.Sub(time.Unix(0, c.heard.Load())) >= c.probeInterval()
}

// probe sends an echo request to a silent peer, and closes the connection if the peer does
// not answer.
func (c *Conn) probe(ctx context.Context) {
	tick := time.NewTicker(c.probeInterval())
	defer tick.Stop()
	asked := false
	c.heard.Store(time.Now().UnixNano())
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		switch {
		case !c.silent(time.Now()):
			asked = false
		case asked:
			c.service.counts.Stalled.Add(1)
			c.net.Close()
			return
		default:
			asked = true
			c.mu.Lock()
			if c.ready {
				c.post(ofp.AppendEchoRequest(nil, c.version, 0), eventChange)
			}
			c.mu.Unlock()
		}
	}
}

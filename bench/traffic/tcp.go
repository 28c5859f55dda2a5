// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
	"golang.org/x/sys/unix"
)

// preambleLen is the length in bytes of the first data of a connection: 4 for the number that marks
// the measurement, 1 for the stream.
const preambleLen = 5

func preamble(test uint32, stream int) []byte {
	return append(binary.BigEndian.AppendUint32(nil, test), byte(stream))
}

func dialTCP(ctx context.Context, remote netip.AddrPort, s *Spec) (*net.TCPConn, error) {
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", remote.String())
	if err != nil {
		return nil, err
	}
	c := conn.(*net.TCPConn)
	if s.SocketBuffer > 0 {
		err = errors.Join(c.SetReadBuffer(s.SocketBuffer), c.SetWriteBuffer(s.SocketBuffer))
	}
	if err == nil && s.Mode != Stream {
		err = c.SetNoDelay(true)
	}
	if err != nil {
		c.Close()
		return nil, err
	}
	return c, nil
}

// acceptTCP accepts the connections of all streams until deadline. It closes connections of other
// measurements.
func acceptTCP(l *net.TCPListener, test uint32, s *Spec, deadline time.Time) ([]*net.TCPConn, error) {
	conns := make([]*net.TCPConn, s.Streams)
	closeAll := func() {
		for _, c := range conns {
			if c != nil {
				c.Close()
			}
		}
	}
	if err := l.SetDeadline(deadline); err != nil {
		return nil, err
	}
	for missing := s.Streams; missing > 0; {
		c, err := l.AcceptTCP()
		if err != nil {
			closeAll()
			return nil, fmt.Errorf("%d of %d connections came: %w", s.Streams-missing, s.Streams, err)
		}
		var head [preambleLen]byte
		_ = c.SetReadDeadline(deadline)
		_, err = io.ReadFull(c, head[:])
		_ = c.SetReadDeadline(time.Time{})
		stream := int(head[4])
		if err != nil || binary.BigEndian.Uint32(head[:]) != test || stream >= s.Streams || conns[stream] != nil {
			c.Close()
			continue
		}
		if s.SocketBuffer > 0 {
			_ = errors.Join(c.SetReadBuffer(s.SocketBuffer), c.SetWriteBuffer(s.SocketBuffer)) // the client reports the same failure
		}
		conns[stream] = c
		missing--
	}
	return conns, nil
}

// tcpSender sends the data of one stream.
type tcpSender struct {
	conn *net.TCPConn
	plan *schedule
	live *live
	buf  []byte
	sent Totals // what was sent in the present phase
}

func newTCPSender(s *Spec, c *net.TCPConn, counters *live) *tcpSender {
	buf := make([]byte, s.Sizes.largest())
	for i := range buf {
		buf[i] = byte(i * 7)
	}
	return &tcpSender{conn: c, plan: newSchedule(s), live: counters, buf: buf}
}

// phase writes blocks until the time limit. If the limit interrupts the write of a block, the bytes
// written so far count, but the block does not.
func (t *tcpSender) phase(ctx context.Context, measured bool, limit time.Duration) error {
	t.plan.restart()
	t.sent = Totals{}
	start := time.Now()
	if err := t.conn.SetWriteDeadline(start.Add(limit)); err != nil {
		return err
	}
	for ctx.Err() == nil {
		elapsed := time.Since(start)
		if elapsed >= limit || measured && t.plan.finished() {
			return nil
		}
		if due := t.plan.due(); due > elapsed {
			wait(min(due, limit)-elapsed, ctx)
			continue
		}
		n, err := t.conn.Write(t.buf[:t.plan.next()])
		t.live.bytes.Add(uint64(n))
		t.sent.Bytes += uint64(n)
		if err == nil {
			t.plan.sent()
			t.sent.Frames++
			t.live.frames.Add(1)
		} else if !errors.Is(err, os.ErrDeadlineExceeded) {
			return err
		}
	}
	return ctx.Err()
}

type tcpReceiver struct {
	conn  *net.TCPConn
	live  *live
	bytes uint64
	last  time.Time
}

func (t *tcpReceiver) run() error {
	buf := make([]byte, maxBlock)
	for {
		n, err := t.conn.Read(buf)
		if n > 0 {
			t.bytes += uint64(n)
			t.live.bytes.Add(uint64(n))
			t.last = time.Now()
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

func retransmits(c *net.TCPConn) uint64 {
	raw, err := c.SyscallConn()
	if err != nil {
		return 0
	}
	n := uint64(0)
	_ = raw.Control(func(fd uintptr) { // 0 is acceptable for a secondary result
		if info, err := unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO); err == nil {
			n = uint64(info.Total_retrans)
		}
	})
	return n
}

// tcpAsker sends requests on one connection, or on a new connection for each request.
type tcpAsker struct {
	spec           *Spec
	remote         netip.AddrPort
	head           []byte
	conn           *net.TCPConn // nil: a new connection for each request
	plan           *schedule
	live           *live
	times          *hdrhistogram.Histogram
	answers        Totals
	request, reply []byte
}

func newTCPAsker(s *Spec, c *net.TCPConn, remote netip.AddrPort, test uint32, stream int, counters *live) *tcpAsker {
	largest := s.Sizes.largest()
	return &tcpAsker{spec: s, remote: remote, head: preamble(test, stream), conn: c, plan: newSchedule(s), live: counters,
		times: newHistogram(), request: make([]byte, largest), reply: make([]byte, max(largest, s.Response))}
}

// phase sends requests until the time limit. If there is a rate, the latency of a request counts from
// the time at which the request was due.
func (t *tcpAsker) phase(ctx context.Context, measured bool, limit time.Duration) error {
	t.plan.restart()
	t.answers = Totals{}
	start := time.Now()
	for ctx.Err() == nil {
		elapsed := time.Since(start)
		if elapsed >= limit || measured && t.plan.finished() {
			return nil
		}
		due := t.plan.due()
		if due > elapsed {
			wait(min(due, limit)-elapsed, ctx)
			continue
		}
		if t.spec.PerSecond == 0 {
			due = elapsed
		}
		size := t.plan.next()
		back, err := t.ask(ctx, size)
		if err != nil {
			return err
		}
		t.plan.sent()
		t.live.frames.Add(1)
		t.live.bytes.Add(uint64(size))
		t.answers.Frames++
		t.answers.Bytes += uint64(back)
		if measured {
			record(t.times, (time.Since(start) - due).Nanoseconds())
		}
	}
	return ctx.Err()
}

func (t *tcpAsker) ask(ctx context.Context, size int) (int, error) {
	back := size
	if t.spec.Response > 0 {
		back = t.spec.Response
	}
	request := append(binary.BigEndian.AppendUint32(nil, uint32(size)), t.request[:size]...)
	if t.conn != nil {
		return back, t.exchange(t.conn, request, back)
	}
	c, err := dialTCP(ctx, t.remote, t.spec)
	if err != nil {
		return 0, err
	}
	defer c.Close()
	if err := t.exchange(c, append(bytes.Clone(t.head), request...), back); err != nil {
		return 0, err
	}
	// The server closes first, so that TIME_WAIT does not occupy the client's ports.
	if _, err := c.Read(t.reply[:1]); err != io.EOF {
		return 0, fmt.Errorf("after the response came %v, expected the end", err)
	}
	return back, nil
}

func (t *tcpAsker) exchange(c *net.TCPConn, request []byte, back int) error {
	if _, err := c.Write(request); err != nil {
		return err
	}
	if _, err := io.ReadFull(c, t.reply[:back]); err != nil {
		return fmt.Errorf("response: %w", err)
	}
	return nil
}

// serveTCP answers requests on a connection until the client closes it. If "single" is set, it answers
// only one request. A request begins with its length. "response" is the size of a response in bytes.
func serveTCP(c *net.TCPConn, response int, single bool, counters *live) error {
	buf := make([]byte, max(4, response))
	for {
		if _, err := io.ReadFull(c, buf[:4]); err == io.EOF {
			return nil
		} else if err != nil {
			return err
		}
		n := int(binary.BigEndian.Uint32(buf))
		if n < 1 || n > maxBlock {
			return fmt.Errorf("a request of %d bytes", n)
		}
		if n > len(buf) {
			buf = make([]byte, n)
		}
		if _, err := io.ReadFull(c, buf[:n]); err != nil {
			return err
		}
		back := n
		if response > 0 {
			back = response
		}
		// counted first, because the client may end after the write
		counters.frames.Add(1)
		counters.bytes.Add(uint64(back))
		if _, err := c.Write(buf[:back]); err != nil {
			return err
		}
		if single {
			return nil
		}
	}
}

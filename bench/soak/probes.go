// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"runtime"
	"sync"
	"time"

	"github.com/vishvananda/netns"
)

// This file has a train of pings and a TCP connection between two taps, each in a
// network namespace of its own. Flows track the TCP connection and drop segments of
// unknown connections, so that it breaks if an upgrade loses the table of connections.

const (
	pingInterval = 10 * time.Millisecond
	// pingPatience is the time after which an unanswered ping counts as lost.
	pingPatience = 3 * time.Second
	// tcpPatience is the time without a byte after which the connection counts as dead.
	tcpPatience = 20 * time.Second
	tcpPort     = 5201
	// tcpChunk bytes are written once in pingInterval.
	tcpChunk = 4096
	// echoRequest and echoReply are types of ICMP messages (RFC 792).
	echoRequest, echoReply = 8, 0
)

var probeAddresses = [2]string{"10.87.0.1", "10.87.0.2"}

type probes struct {
	spaces   [2]string // names of the namespaces
	icmp     net.PacketConn
	listener net.Listener
	client   net.Conn
	server   net.Conn

	stopping chan struct{}
	senders  sync.WaitGroup
	readers  sync.WaitGroup

	mu       sync.Mutex
	sent     []time.Time // moment of each ping; index: sequence number
	answered []bool
	got      probed
	lastByte time.Time
}

// probed is the result of the probes.
type probed struct {
	sent, lost, twice int64 // pings
	slowest           time.Duration
	bytes, broken     int64
	silence           time.Duration // longest time without a byte of the TCP connection
	err               error         // first error of a ping or of the TCP connection
}

// newProbes makes the namespaces, the ports and their flows.
func newProbes(s *weft) (p *probes, err error) {
	p = &probes{stopping: make(chan struct{})}
	defer func() {
		if err != nil {
			p.close()
		}
	}()
	for i, name := range []string{"c", "d"} {
		p.spaces[i] = fmt.Sprintf("weft-soak-%d-%s", os.Getpid(), name)
		if err = ip("netns", "add", p.spaces[i]); err != nil {
			return p, err
		}
		if err = s.command("add-port", name, "type=tap", "netns="+p.spaces[i]); err != nil {
			return p, err
		}
		if err = ip("-n", p.spaces[i], "addr", "add", probeAddresses[i]+"/24", "dev", name); err != nil {
			return p, err
		}
	}
	for _, flow := range []string{
		"priority=1,in_port=c,actions=output:d", "priority=1,in_port=d,actions=output:c",
		"priority=2,tcp,ct_state=-trk,actions=ct(table=1)",
		"table=1,tcp,ct_state=+trk+new,tcp_flags=+syn-ack,in_port=c,actions=ct(commit),output:d",
		"table=1,tcp,ct_state=+trk+est,in_port=c,actions=output:d", "table=1,tcp,ct_state=+trk+est,in_port=d,actions=output:c",
	} {
		if err = s.command("add-flow", flow); err != nil {
			return p, err
		}
	}
	return p, nil
}

func ip(args ...string) error {
	if out, err := exec.Command("ip", args...).CombinedOutput(); err != nil {
		return fmt.Errorf("ip %v: %w: %s", args, err, out)
	}
	return nil
}

// within calls f on a thread in a namespace. Sockets that f opens stay in the namespace.
func (p *probes) within(space int, f func() error) error {
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // without UnlockOSThread, the thread ends with its goroutine
		h, err := netns.GetFromName(p.spaces[space])
		if err == nil {
			err = netns.Set(h)
			h.Close()
		}
		if err == nil {
			err = f()
		}
		done <- err
	}()
	return <-done
}

// start opens the sockets and starts the probes.
func (p *probes) start() error {
	err := p.within(1, func() (err error) {
		p.listener, err = net.Listen("tcp", fmt.Sprintf("%s:%d", probeAddresses[1], tcpPort))
		return err
	})
	if err != nil {
		return err
	}
	accepted := make(chan error, 1)
	go func() {
		var err error
		p.server, err = p.listener.Accept()
		accepted <- err
	}()
	err = p.within(0, func() (err error) {
		if p.icmp, err = net.ListenPacket("ip4:icmp", probeAddresses[0]); err != nil {
			return err
		}
		p.client, err = net.DialTimeout("tcp", fmt.Sprintf("%s:%d", probeAddresses[1], tcpPort), patience)
		return err
	})
	if err == nil {
		err = <-accepted
	}
	if err != nil {
		return fmt.Errorf("probes: %w", err)
	}
	p.lastByte = time.Now()
	p.senders.Go(p.sendPings)
	p.senders.Go(p.sendBytes)
	p.readers.Go(p.receivePings)
	p.readers.Go(p.receiveBytes)
	return nil
}

func (p *probes) sendPings() {
	to := &net.IPAddr{IP: net.ParseIP(probeAddresses[1])}
	for tick := time.NewTicker(pingInterval); ; {
		select {
		case <-p.stopping:
			tick.Stop()
			return
		case <-tick.C:
		}
		p.mu.Lock()
		n := len(p.sent)
		p.sent, p.answered = append(p.sent, time.Now()), append(p.answered, false)
		p.mu.Unlock()
		if _, err := p.icmp.WriteTo(echo(n), to); err != nil {
			p.fail(fmt.Errorf("ping: %w", err))
			return
		}
	}
}

// echo returns an echo request (RFC 792) whose data is n.
func echo(n int) []byte {
	m := make([]byte, 16)
	m[0] = echoRequest
	binary.BigEndian.PutUint16(m[4:], uint16(os.Getpid()))
	binary.BigEndian.PutUint16(m[6:], uint16(n))
	binary.BigEndian.PutUint64(m[8:], uint64(n))
	sum := uint32(0)
	for i := 0; i < len(m); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(m[i:]))
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	binary.BigEndian.PutUint16(m[2:], ^uint16(sum))
	return m
}

func (p *probes) receivePings() {
	m := make([]byte, 1500)
	for {
		n, _, err := p.icmp.ReadFrom(m)
		if err != nil {
			return // closed by end
		}
		now := time.Now()
		if n < 16 || m[0] != echoReply || binary.BigEndian.Uint16(m[4:]) != uint16(os.Getpid()) {
			continue
		}
		number := binary.BigEndian.Uint64(m[8:])
		p.mu.Lock()
		if number < uint64(len(p.sent)) {
			if p.answered[number] {
				p.got.twice++
			}
			p.answered[number] = true
			p.got.slowest = max(p.got.slowest, now.Sub(p.sent[number]))
		}
		p.mu.Unlock()
	}
}

// sendBytes writes bytes that count up.
func (p *probes) sendBytes() {
	chunk, n := make([]byte, tcpChunk), byte(0)
	for tick := time.NewTicker(pingInterval); ; {
		select {
		case <-p.stopping:
			tick.Stop()
			_ = p.client.(*net.TCPConn).CloseWrite() // error ignored: receiveBytes reports a broken connection
			return
		case <-tick.C:
		}
		for i := range chunk {
			chunk[i] = n
			n++
		}
		_ = p.client.SetWriteDeadline(time.Now().Add(tcpPatience))
		if _, err := p.client.Write(chunk); err != nil {
			p.fail(fmt.Errorf("write: %w", err))
			return
		}
	}
}

func (p *probes) receiveBytes() {
	chunk, want := make([]byte, 64<<10), byte(0)
	for {
		_ = p.server.SetReadDeadline(time.Now().Add(tcpPatience))
		n, err := p.server.Read(chunk)
		now := time.Now()
		for _, b := range chunk[:n] {
			if b != want {
				p.fail(errors.New("a byte has a wrong value"))
				return
			}
			want++
		}
		p.mu.Lock()
		p.got.bytes += int64(n)
		if n > 0 {
			p.got.silence = max(p.got.silence, now.Sub(p.lastByte))
			p.lastByte = now
		}
		p.mu.Unlock()
		if errors.Is(err, io.EOF) {
			return
		}
		if err != nil {
			p.fail(fmt.Errorf("read: %w", err))
			return
		}
	}
}

// fail notes the first error of the probes.
func (p *probes) fail(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.got.err == nil {
		p.got.err, p.got.broken = err, 1
	}
}

// end ends the probes and returns their result.
func (p *probes) end() probed {
	close(p.stopping)
	p.senders.Wait()
	for end := time.Now().Add(pingPatience); time.Now().Before(end) && p.unanswered() > 0; {
		time.Sleep(pingInterval)
	}
	if p.icmp != nil {
		p.icmp.Close()
	}
	p.readers.Wait()
	lost := p.unanswered()
	p.got.sent, p.got.lost = int64(len(p.sent)), lost
	return p.got
}

func (p *probes) unanswered() (n int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, answered := range p.answered {
		if !answered {
			n++
		}
	}
	return n
}

// close removes the namespaces, with the taps in them.
func (p *probes) close() {
	for _, c := range []io.Closer{p.listener, p.client, p.server, p.icmp} {
		if c != nil {
			_ = c.Close() // error ignored: end has closed it already
		}
	}
	for _, name := range p.spaces {
		if name != "" {
			_ = netns.DeleteNamed(name)
		}
	}
}

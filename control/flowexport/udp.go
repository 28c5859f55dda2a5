// SPDX-License-Identifier: Apache-2.0

package flowexport

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"
)

// collector is a receiver of an exporter's messages. A message that cannot be sent is counted and
// dropped.
type collector struct {
	target netip.AddrPort
	conn   *net.UDPConn // nil: not open
	tried  time.Time    // when the last attempt to open the socket began
	sent   uint64
	failed uint64
	// problem is the error of one of the last two messages, or "" if both were sent. lastFailed is true if
	// the last message had an error. A collector at which nobody listens causes an error only at every
	// second message, so one message is not enough.
	problem    string
	lastFailed bool
}

// redialAfter is the time between two attempts to open a collector's socket.
const redialAfter = time.Second

// open opens the socket, if it is not open. It fails if there is no route to the collector.
func (c *collector) open(now time.Time) error {
	if c.conn != nil {
		return nil
	}
	if !c.tried.IsZero() && now.Sub(c.tried) < redialAfter {
		return errors.New(cmp.Or(c.problem, "not open"))
	}
	c.tried = now
	conn, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(c.target))
	if err != nil {
		return fmt.Errorf("collector %s: %w", c.target, reasonOf(err))
	}
	c.conn = conn
	return nil
}

// reasonOf returns the errno in an error of package net. Its whole text would repeat the collector's
// address.
func reasonOf(err error) error {
	var errno unix.Errno
	if errors.As(err, &errno) {
		return errno
	}
	return err
}

// send sends a message without waiting. ECONNREFUSED reports that the message before was refused, so
// send then tries again.
func (c *collector) send(message []byte, now time.Time) {
	err := c.open(now)
	if err == nil {
		err = c.write(message)
	}
	refused := errors.Is(err, unix.ECONNREFUSED)
	if err != nil {
		c.failed, c.problem = c.failed+1, err.Error()
	}
	if refused {
		err = c.write(message)
	}
	if err == nil {
		c.sent++
		if !refused && !c.lastFailed {
			c.problem = ""
		}
	}
	c.lastFailed = refused || err != nil
}

func (c *collector) write(message []byte) error {
	raw, err := c.conn.SyscallConn()
	if err != nil {
		return err
	}
	var failure error
	err = raw.Write(func(fd uintptr) bool {
		for {
			if failure = unix.Send(int(fd), message, unix.MSG_DONTWAIT); failure != unix.EINTR {
				return true
			}
		}
	})
	if err = cmp.Or(err, failure); err != nil {
		return fmt.Errorf("collector %s: %w", c.target, reasonOf(err))
	}
	return nil
}

// local returns the local address of the route to the collector.
func (c *collector) local(now time.Time) netip.Addr {
	if c.open(now) != nil {
		return netip.Addr{}
	}
	return c.conn.LocalAddr().(*net.UDPAddr).AddrPort().Addr().Unmap()
}

func (c *collector) close() {
	if c.conn != nil {
		c.conn.Close()
		c.conn = nil
	}
}

// addressOf returns a device's first address that is not link-local.
func addressOf(device string) (netip.Addr, bool) {
	if device == "" {
		return netip.Addr{}, false
	}
	dev, err := net.InterfaceByName(device)
	if err != nil {
		return netip.Addr{}, false
	}
	list, err := dev.Addrs()
	if err != nil {
		return netip.Addr{}, false
	}
	for _, a := range list {
		if prefix, err := netip.ParsePrefix(a.String()); err == nil && !prefix.Addr().IsLinkLocalUnicast() {
			return prefix.Addr().Unmap(), true
		}
	}
	return netip.Addr{}, false
}

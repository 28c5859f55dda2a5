// SPDX-License-Identifier: Apache-2.0

package central

import (
	"fmt"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"weft/api"
	"weft/e2e/lab"
)

// groupSite is two hosts with two guests each: a1 and a2 on h1, b1 and b2 on h2.
func groupSite(t *testing.T) *site {
	t.Helper()
	s := emptySite(t)
	var list []*lab.FleetGuest
	for i, name := range []string{"a1", "a2", "b1", "b2"} {
		g := s.Guest(name, "blue", fmt.Sprintf("02:00:00:00:00:%02x", i+1), fmt.Sprintf("10.0.0.%d", i+1))
		s.guests[name] = g
		list = append(list, g)
	}
	s.Weft("apply", s.File(map[string]int{"blue": 100}, hosts[:2], list))
	for i, name := range hosts[:2] {
		// Both uplinks are of one type. af_packet leaves TCP checksums to the device, and a veth leaves them
		// to the receiver. An af_xdp receiver would not know this.
		d := s.AddHost(name, "af_packet")
		list[2*i].Attach(d, guestMTU)
		list[2*i+1].Attach(d, guestMTU)
	}
	s.expects("sync --wait=hosts", "2 hosts have applied it")
	return s
}

// explain logs the daemons' logs and what the commands of weft print on each host, if the test has failed.
func (s *site) explain(t *testing.T, commands ...string) {
	if !t.Failed() {
		return
	}
	s.logs(t)
	for _, d := range s.Hosts {
		for _, command := range commands {
			out, errs, _ := d.TryWeft(command)
			t.Logf("%s: weft %s\n%s%s", d.Host, command, out, errs)
		}
	}
}

// Allowed frames arrive and refused ones do not, between guests of one host and of two, as the
// rules change.
func TestGroups(t *testing.T) {
	s := groupSite(t)
	a1, a2, b1, b2 := s.guests["a1"], s.guests["a2"], s.guests["b1"], s.guests["b2"]
	defer s.explain(t, "dump-megaflows", "dump-conntrack", "dump-ports")
	s.reachAll(s.allGuests()...)

	s.Weft("secgroup", "add", "admin")
	s.Weft("secgroup", "add", "web", "rules=in tcp 80; in icmp 8 from group admin")
	s.Weft("port", "set", "b1", "groups=web", "--wait=hosts")
	s.silentAll(b1, b2, a1)
	if n := s.dropped(b1.At, "b2"); n == 0 {
		t.Error("no refused frame of b2 is counted")
	}
	s.reach(b1, b2) // what b1 begins
	s.reach(b1, a1)
	s.reach(a1, b2)

	s.Weft("port", "set", "a1", "groups=admin", "--wait=hosts")
	s.Weft("port", "set", "b2", "groups=admin", "--wait=hosts")
	s.reach(a1, b1)
	s.reach(b2, b1)
	s.silentAll(b1, a2)
	s.silentAll(a1, b1) // nothing may begin a connection to group admin

	near, far := s.connect(a2, b1), s.connect(b2, b1)
	near.carries(t, "of another host")
	far.carries(t, "of the same host")
	s.restart(a2.At)
	near.carries(t, "after control's restart")
	s.Weft("secgroup", "set", "web", "remove=in tcp 80", "--wait=hosts")
	near.isCut(t, "of another host")
	far.isCut(t, "of the same host")
	s.Weft("secgroup", "set", "web", "allow=in tcp 80 from 10.0.0.0/30", "--wait=hosts")
	near.recovers(t)

	s.Weft("secgroup", "set", "admin", "rules=out icmp 8 to group web", "--wait=hosts")
	s.reach(a1, b1)
	s.silentAll(a2, a1)
	s.Weft("port", "set", "b1", "groups=", "--wait=hosts")
	s.reach(a2, b1)
	s.silentAll(b1, a1) // b1 is not in group web any more
}

// A connection that the rules of a group allow runs in the kernel of the host that asks them, from the tunnel
// to a device and back. A removed rule cuts it there, too, and a new rule lets it go on.
func TestGroupsInTheKernel(t *testing.T) {
	s := emptySite(t)
	a, b := s.Guest("a1", "blue", "02:00:00:00:00:01", "10.0.0.1"), s.Guest("b1", "blue", "02:00:00:00:00:02", "10.0.0.2")
	s.Weft("apply", s.File(map[string]int{"blue": 100}, hosts[:2], []*lab.FleetGuest{a, b}))
	for i, g := range []*lab.FleetGuest{a, b} {
		g.AttachDevice(s.AddHost(hosts[i], "uplink", "offload=on"), guestMTU, "offload=on")
	}
	s.Weft("secgroup", "add", "web", "rules=in tcp 80")
	s.Weft("port", "set", "b1", "groups=web", "--wait=hosts")
	defer s.explain(t, "show", "dump-megaflows", "dump-conntrack")

	c := s.connect(a, b)
	s.enterKernel(c, b.At)
	b.At.Control().Kill()
	c.carries(t, "of a host without control")
	b.At.Start()
	s.expects("sync --wait=hosts", "2 hosts have applied it")
	s.enterKernel(c, b.At)

	s.Weft("secgroup", "set", "web", "remove=in tcp 80", "--wait=hosts")
	c.isCut(t, "in the kernel")
	s.Weft("secgroup", "set", "web", "allow=in tcp 80 from 10.0.0.1/32", "--wait=hosts")
	c.recovers(t)
	s.enterKernel(c, b.At)
	s.Weft("port", "set", "b1", "groups=", "--wait=hosts")
	c.carries(t, "of a port that has left its group")
}

// enterKernel sends bytes over a connection until the kernel of host d forwards them.
func (s *site) enterKernel(c *stream, d *lab.Daemon) {
	s.t.Helper()
	const enough = 10 // bytes in sequence
	offloaded := func() (n uint64) {
		var shown api.Show
		d.WeftJSON(&shown, "show")
		for _, w := range shown.Workers {
			n += w.OffloadedFrames
		}
		return n
	}
	for end := time.Now().Add(settle); ; time.Sleep(10 * time.Millisecond) {
		before := offloaded()
		for range enough {
			if err := c.pass(settle); err != nil {
				s.t.Fatalf("the connection on its way into the kernel: %v", err)
			}
		}
		time.Sleep(600 * time.Millisecond) // until the worker has taken the counts
		if int64(offloaded())-int64(before) >= enough {
			return
		}
		if time.Now().After(end) {
			s.t.Fatalf("the connection does not run in the kernel of %s", d.Host)
		}
	}
}

// silentAll fails if a ping of one of the guests is answered.
func (s *site) silentAll(to *lab.FleetGuest, from ...*lab.FleetGuest) {
	s.t.Helper()
	var running sync.WaitGroup
	for _, g := range from {
		running.Go(func() { s.silent(g, to.IP) })
	}
	running.Wait()
}

// dropped returns the frames that came from a port and that rules of groups refused.
func (s *site) dropped(d *lab.Daemon, port string) uint64 {
	var ports []api.Port
	d.WeftJSON(&ports, "dump-ports", port)
	return ports[0].Stats.RxDrops["group-rules"]
}

// restart ends the control process of a host and starts it again.
func (s *site) restart(d *lab.Daemon) {
	d.Terminate()
	d.Start()
	s.expects("sync --wait=hosts", "2 hosts have applied it")
}

// stream is a TCP connection to port 80 of a guest.
type stream struct {
	client, server net.Conn
	sent           byte
}

func (s *site) connect(from, to *lab.FleetGuest) *stream {
	s.t.Helper()
	var c stream
	var l net.Listener
	err := to.Do(func() (err error) { l, err = net.Listen("tcp", to.IP+":80"); return err })
	if err == nil {
		defer l.Close()
		err = from.Do(func() (err error) { c.client, err = dialUntil(time.Now().Add(settle), to.IP+":80"); return err })
	}
	if err == nil {
		c.server, err = l.Accept()
	}
	if err != nil {
		s.t.Fatalf("TCP from %s to %s: %v", from, to, err)
	}
	s.t.Cleanup(func() { c.client.Close(); c.server.Close() })
	return &c
}

// dialUntil opens a TCP connection, and repeats failed attempts until "end". A host that has just started
// drops the ARP requests of its guests until it has a session with a central. After three of them, the
// guest's kernel gives up.
func dialUntil(end time.Time, address string) (net.Conn, error) {
	for ; ; time.Sleep(100 * time.Millisecond) {
		conn, err := net.DialTimeout("tcp", address, time.Until(end))
		if err == nil || !time.Now().Before(end) {
			return conn, err
		}
	}
}

// pass sends a byte from client to server, and waits up to "limit" for its arrival.
func (c *stream) pass(limit time.Duration) error {
	c.sent++
	if _, err := c.client.Write([]byte{c.sent}); err != nil {
		return err
	}
	return c.receive(limit)
}

func (c *stream) receive(limit time.Duration) error {
	c.server.SetReadDeadline(time.Now().Add(limit))
	b := make([]byte, 1)
	_, err := io.ReadFull(c.server, b)
	if err == nil && b[0] != c.sent {
		err = fmt.Errorf("received %d, expected %d", b[0], c.sent)
	}
	return err
}

func (c *stream) carries(t *testing.T, whose string) {
	t.Helper()
	if err := c.pass(settle); err != nil {
		t.Errorf("the connection %s: %v", whose, err)
	}
}

// isCut fails if a byte arrives.
func (c *stream) isCut(t *testing.T, whose string) {
	t.Helper()
	if err := c.pass(cutFor); err == nil {
		t.Errorf("the connection %s carries bytes although no rule allows it", whose)
	}
}

// cutFor is long enough for several retransmissions of TCP.
const cutFor = time.Second

// recovers fails unless the byte that isCut has sent in vain arrives now.
func (c *stream) recovers(t *testing.T) {
	t.Helper()
	if err := c.receive(settle); err != nil {
		t.Errorf("the connection that is allowed again: %v", err)
	}
}

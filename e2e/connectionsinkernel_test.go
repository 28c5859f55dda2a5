// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"regexp"
	"strings"
	"testing"
	"time"

	"weft/e2e/lab"
)

// natIP and natIPv6 are the addresses to which the test's flows translate guestIP and guestIPv6.
const (
	natIP      = "10.0.0.100"
	natIPv6    = "fd00::100"
	guestIPv6  = "fd00::1"
	remoteIPv6 = "fd00::2"
)

// Established TCP connections over IPv4 and IPv6 run in the kernel, translated and through a VXLAN tunnel, in
// both directions. They survive the deaths of control and engine. Their end goes through the worker.
func TestConnectionsInTheKernel(t *testing.T) {
	t.Parallel()
	h, _, a, remote := linuxTunnel(t)
	d := h.Weftd("--name", "sw0")
	d.Weft("add-port", "p0", "type=device", "offload=on")
	d.Weft("add-port", "overlay", "type=vxlan", fmt.Sprint("vni=", siteVNI), "remote="+peerIP)
	d.Weft("add-port", "up", "type=uplink", "dev=u0", "offload=on")
	d.Weft("add-flow", "actions=normal")
	a.EnableIPv6()
	remote.EnableIPv6()
	a.Run("ip", "address", "add", guestIPv6+"/64", "dev", "eth0", "nodad")
	remote.Run("ip", "address", "add", remoteIPv6+"/64", "dev", "eth0", "nodad")
	for protocol, nat := range map[string]string{"tcp": natIP, "tcp6": natIPv6} {
		for _, flow := range []string{
			"priority=40000," + protocol + ",actions=ct(table=1,zone=5,nat)",
			"table=1,in_port=p0," + protocol + ",ct_state=+new,actions=ct(commit,zone=5,nat(src=" + nat + ")),output:overlay",
			"table=1,in_port=p0," + protocol + ",ct_state=+est,actions=output:overlay",
			"table=1,in_port=overlay," + protocol + ",ct_state=+est,actions=output:p0",
		} {
			d.Weft("add-flow", flow)
		}
		remote.Run("ip", "neighbour", "replace", nat, "lladdr", macOf(t, a, "eth0"), "dev", "eth0", "nud", "permanent")
	}
	reach(t, a, remoteIP)
	reach(t, a, remoteIPv6)

	serve(t, remote, remoteIP, 8080)
	serve(t, remote, remoteIPv6, 8080)
	c, c6 := call(t, a, remoteIP, 8080), call(t, a, remoteIPv6, 8080)
	if from := c.line(); from != natIP+"\n" {
		t.Errorf("the server sees %q", from)
	}
	if from := c6.line(); from != natIPv6+"\n" {
		t.Errorf("the server sees %q", from)
	}
	c.enterKernel(d)
	c6.enterKernel(d)
	for _, port := range []string{"p0", "up"} {
		if detail := portOf(t, d, port).Reason; !strings.Contains(detail, "with 2 connections") {
			t.Errorf("%s: %s", port, detail)
		}
	}
	list := d.Weft("dump-megaflows")
	for _, want := range []string{
		`(?m)tcp,.*kernel:yes, actions:ct\(zone=5,nat\),recirc`, `(?m)-new\+est.*kernel:yes, actions:p0$`, `(?m)-new\+est.*kernel:yes, actions:tunnel`,
		`(?m)\+new.*kernel:no \(it tracks again\), actions:ct\(commit`,
	} {
		if !regexp.MustCompile(want).MatchString(list) {
			t.Errorf("no %s in\n%s", want, list)
		}
	}
	before, sent := offloaded(d), c.echoes
	c.exchange(30)
	eventually(t, func() error { // an answer may go with the acknowledgement
		if n := offloaded(d) - before; n < uint64(2*(c.echoes-sent)) {
			return fmt.Errorf("the kernel has forwarded %d frames of %d echoes", n, c.echoes-sent)
		}
		return nil
	})
	both := func(exchange func(*echoing)) { exchange(c); exchange(c6) }
	some := func(c *echoing) { c.exchange(30) }
	d.Control().Kill()
	both(some)
	d.Start()
	both(some)
	both(func(c *echoing) { c.enterKernel(d) })
	d.KillEngine()
	both(some)
	both(func(c *echoing) { c.enterKernel(d) })

	stream50M(t, a, remote, remoteIP)
	stream50M(t, a, remote, remoteIPv6)
	c6.exchange(1)
	c.exchange(1)
	if err := c.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if rest, err := io.ReadAll(c.reader); err != nil || len(rest) != 0 {
		t.Errorf("after the end: %q, %v", rest, err)
	}
	port := fmt.Sprint("sport=", c.LocalAddr().(*net.TCPAddr).Port, ",dport=8080")
	eventually(t, func() error {
		list := d.Weft("dump-conntrack")
		for line := range strings.Lines(list) {
			if strings.Contains(line, port) && strings.Contains(line, "TIME_WAIT") {
				return nil
			}
		}
		return fmt.Errorf("the tracker has not seen the end of %s:\n%s", port, list)
	})
}

// echoing is a TCP connection to a server that sends everything back.
type echoing struct {
	*net.TCPConn
	t      *testing.T
	reader *bufio.Reader
	echoes int
}

// call connects a host to the server of serve.
func call(t *testing.T, from *lab.Host, address string, port int) *echoing {
	t.Helper()
	c := &echoing{t: t}
	eventually(t, func() error {
		return from.Do(func() error {
			conn, err := net.DialTCP("tcp", nil, &net.TCPAddr{IP: net.ParseIP(address), Port: port})
			c.TCPConn = conn
			return err
		})
	})
	t.Cleanup(func() { c.Close() })
	if err := c.SetDeadline(time.Now().Add(5 * time.Minute)); err != nil {
		t.Fatal(err)
	}
	c.reader = bufio.NewReader(c.TCPConn)
	return c
}

func (c *echoing) line() string {
	c.t.Helper()
	line, err := c.reader.ReadString('\n')
	if err != nil {
		c.t.Fatalf("after %d echoes: %v", c.echoes, err)
	}
	return line
}

// exchange sends n lines, each after the answer to the previous one.
func (c *echoing) exchange(n int) {
	c.t.Helper()
	for range n {
		c.echoes++
		want := fmt.Sprintln("echo", c.echoes)
		if _, err := c.Write([]byte(want)); err != nil {
			c.t.Fatalf("echo %d: %v", c.echoes, err)
		}
		if got := c.line(); got != want {
			c.t.Fatalf("%q comes back as %q", want, got)
		}
	}
}

// enterKernel exchanges lines until the kernel forwards both directions.
func (c *echoing) enterKernel(d *lab.Daemon) {
	c.t.Helper()
	const enough = 20
	for end := time.Now().Add(2 * settle); ; time.Sleep(10 * time.Millisecond) {
		before := offloaded(d)
		c.exchange(enough / 2)
		time.Sleep(600 * time.Millisecond)               // until the worker has taken the counts
		if int64(offloaded(d))-int64(before) >= enough { // a new engine counts from 0
			return
		}
		if time.Now().After(end) {
			c.t.Fatalf("the connection does not run in the kernel: %s\n%s", d.Weft("show"), d.Weft("dump-megaflows"))
		}
	}
}

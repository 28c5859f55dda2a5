// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"strings"
	"testing"

	"weft/e2e/lab"
)

// The number of connections. With 60 connections, one of the three servers gets none only once
// in 10^10 runs.
const (
	backends      = 3
	balancedCalls = 60
	virtualIP     = "192.0.2.9"
)

func backendIP(i int) string { return fmt.Sprint("10.0.0.1", i) }

// backend runs server number i. The server sends its number: first with the caller's
// address, then with each line that it receives.
func backend(host *lab.Host, i int) {
	host.Start("python3", "-c", fmt.Sprintf(`
import socketserver
class Echo(socketserver.StreamRequestHandler):
    def handle(self):
        self.wfile.write(b"%d %%s\n" %% self.client_address[0].encode())
        for line in self.rfile:
            self.wfile.write(b"%d " + line)
class Server(socketserver.ThreadingTCPServer):
    daemon_threads, request_queue_size = True, 100
Server((%q, 8080), Echo).serve_forever()
`, i, i, backendIP(i)))
}

// A select group spreads connections to a virtual address over three servers. Each
// connection keeps its server, even if the server leaves the group.
func TestConntrackBalanced(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	weft, client := l.Host("host").Weftd(), l.Host("client")
	weft.Tap(client, outsideMAC, "192.0.2.2/24", guestMTU)
	client.Run("ip", "route", "add", "10.0.0.0/24", "dev", "eth0")
	client.Run("ip", "neighbour", "replace", virtualIP, "lladdr", "02:00:00:00:01:00", "dev", "eth0", "nud", "permanent")
	bucket := func(i int) string {
		return fmt.Sprintf(",bucket=bucket_id=%d,weight=100,ct(commit,zone=7,nat(dst=%s:8080),exec(set_field:%d->ct_mark),table=2)", i, backendIP(i), i)
	}
	group, flows := "group_id=1,type=select,selection_method=hash,fields(ip_src,tcp_src)", []string{
		"table=0,priority=10,in_port=1,tcp,nw_dst=" + virtualIP + ",tp_dst=80,actions=ct(zone=7,nat,table=1)",
		"table=1,ct_state=+new,tcp,actions=group:1",
		"table=1,ct_state=+est,tcp,actions=resubmit(,2)",
		"table=3,ct_state=+est+rpl,tcp,actions=set_field:" + outsideMAC + "->eth_dst,output:1",
	}
	for i := 1; i <= backends; i++ {
		h, mac := l.Host(fmt.Sprint("backend", i)), fmt.Sprintf("02:00:00:00:01:%02x", i)
		weft.Tap(h, mac, backendIP(i)+"/24", guestMTU)
		h.Run("ip", "route", "add", "192.0.2.0/24", "dev", "eth0")
		h.Run("ip", "neighbour", "replace", "192.0.2.2", "lladdr", outsideMAC, "dev", "eth0", "nud", "permanent")
		backend(h, i)
		group += bucket(i)
		flows = append(flows,
			fmt.Sprintf("table=2,tcp,nw_dst=%s,actions=set_field:%s->eth_dst,output:%d", backendIP(i), mac, i+1),
			fmt.Sprintf("table=0,priority=10,in_port=%d,tcp,actions=ct(zone=7,nat,table=3)", i+1))
	}
	weft.Weft("add-group", group)
	for _, f := range append(flows, "table=0,priority=1,actions=drop") {
		weft.Weft("add-flow", f)
	}
	for i := 1; i <= backends; i++ { // wait for each server until it listens
		weft.Weft("mod-group", "group_id=1,type=select"+bucket(i))
		eventually(t, func() error {
			got, err := caller(client, virtualIP, 80)
			if err != nil || got != fmt.Sprint(i, " 192.0.2.2") {
				return fmt.Errorf("backend %d: %q %v\n%s", i, got, err, weft.Weft("dump-conntrack")+weft.Weft("dump-flows"))
			}
			return nil
		})
	}
	weft.Weft("mod-group", group)
	balanced(t, weft, client, func() {
		weft.Weft("mod-group", "group_id=1,type=select"+bucket(1))
	})
}

func balanced(t *testing.T, weft *lab.Daemon, client *lab.Host, change func()) {
	t.Helper()
	p := client.Start("python3", "-u", "-c", fmt.Sprintf(`
import socket, sys, time
files, first = [], []
for i in range(%d):
    c = socket.create_connection((%q, 80), timeout=20)
    assert c.getpeername() == (%q, 80)
    files.append(c.makefile("rwb", buffering=0))
    first.append(files[-1].readline().split())
def again(word):
    for f, (who, me) in zip(files, first):
        f.write(word + b"\n")
        got = f.readline().split()
        assert me == b"192.0.2.2" and got == [who, word], (me, who, got)
again(b"before")
print("spread", *[sum(who == b"%%d" %% n for who, me in first) for n in range(1, %d)])
for n in range(60):
    again(b"during")
    time.sleep(0.02)
print("stayed")
`, balancedCalls, virtualIP, virtualIP, backends+1))
	eventually(t, func() error {
		if !p.Alive() || strings.Contains(p.Output(), "spread") {
			return nil
		}
		return fmt.Errorf("%s\n%s", p.Output(), weft.Weft("dump-conntrack"))
	})
	change()
	if err := p.Wait(settle); err != nil || !strings.Contains(p.Output(), "stayed") {
		t.Fatalf("%v\n%s\n%s", err, p.Output(), weft.Weft("dump-conntrack"))
	}
	var spread [backends]int
	line := p.Output()[strings.Index(p.Output(), "spread"):]
	if _, err := fmt.Sscanf(line, "spread %d %d %d", &spread[0], &spread[1], &spread[2]); err != nil {
		t.Fatal(err, line)
	}
	total := 0
	for i, n := range spread {
		if n == 0 {
			t.Errorf("backend %d has no connection: %v", i+1, spread)
		}
		total += n
		// the mark of a connection is the number of its server
		if marked := strings.Count(weft.Weft("dump-conntrack", "zone=7", "", "ct_nw_src="+backendIP(i+1)), fmt.Sprintf(",mark=%d,", i+1)); marked < n {
			t.Errorf("backend %d has %d connections, of which %d are marked", i+1, n, marked)
		}
	}
	if total != balancedCalls {
		t.Errorf("%v of %d connections", spread, balancedCalls)
	}
}

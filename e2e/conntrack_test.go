// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"net"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"

	"weft/e2e/lab"
)

// tracked is a switch that tracks connections between two guests, inside and outside.
type tracked struct {
	t               *testing.T
	weft            *lab.Daemon
	inside, outside *lab.Host
}

const (
	insideMAC  = "02:00:00:00:00:01"
	outsideMAC = "02:00:00:00:00:02"
)

// newTracked starts a switch and two guests: inside (10.0.0.1, fd00::1) and outside
// (192.0.2.2, 2001:db8::2). Each guest has static neighbour entries that map the NAT
// addresses to the other guest.
func newTracked(t *testing.T, flows string) *tracked {
	t.Helper()
	l := newLab(t)
	s := &tracked{t: t, weft: l.Host("host").Weftd(), inside: l.Host("inside"), outside: l.Host("outside")}
	s.inside.EnableIPv6()
	s.outside.EnableIPv6()
	s.weft.Tap(s.inside, insideMAC, "10.0.0.1/24", guestMTU)
	s.weft.Tap(s.outside, outsideMAC, "192.0.2.2/24", guestMTU)
	s.configure()
	for _, f := range strings.Split(strings.TrimSpace(flows), "\n") {
		s.weft.Weft("add-flow", f)
	}
	return s
}

func (s *tracked) configure() {
	s.t.Helper()
	s.inside.Run("ip", "address", "add", "fd00::1/64", "dev", "eth0", "nodad")
	s.outside.Run("ip", "address", "add", "2001:db8::2/64", "dev", "eth0", "nodad")
	s.inside.Run("ip", "route", "add", "192.0.2.0/24", "dev", "eth0")
	s.inside.Run("ip", "route", "add", "2001:db8::/64", "dev", "eth0")
	s.outside.Run("ip", "route", "add", "10.0.0.0/24", "dev", "eth0")
	s.outside.Run("ip", "route", "add", "fd00::/64", "dev", "eth0")
	for _, ip := range []string{"192.0.2.1", "192.0.2.2", "192.0.2.9", "2001:db8::1", "2001:db8::2", "2001:db8::9"} {
		s.inside.Run("ip", "neighbour", "replace", ip, "lladdr", outsideMAC, "dev", "eth0", "nud", "permanent")
	}
	for _, ip := range []string{"10.0.0.1", "192.0.2.1", "192.0.2.9", "fd00::1", "2001:db8::1", "2001:db8::9"} {
		s.outside.Run("ip", "neighbour", "replace", ip, "lladdr", insideMAC, "dev", "eth0", "nud", "permanent")
	}
}

func serve(t *testing.T, host *lab.Host, address string, port int) {
	t.Helper()
	host.Start("python3", "-c", fmt.Sprintf(`
import socket, threading
s = socket.create_server((%q, %d), family=socket.AF_INET6 if ":" in %q else socket.AF_INET)
def echo(c, a):
    c.sendall((a[0] + "\n").encode())
    while True:
        b = c.recv(4096)
        if not b: break
        c.sendall(b)
    c.close()
while True:
    c, a = s.accept()
    threading.Thread(target=echo, args=(c, a), daemon=True).start()
`, address, port, address))
}

func caller(host *lab.Host, address string, port int) (string, error) {
	out, err := host.Try("python3", "-c", fmt.Sprintf(`
import socket
c = socket.create_connection((%q, %d), timeout=2)
print(c.makefile().readline(), end="")
c.close()
`, address, port))
	return strings.TrimSpace(out), err
}

func (s *tracked) calls(host *lab.Host, address string, port int, from string) {
	s.t.Helper()
	eventually(s.t, func() error {
		got, err := caller(host, address, port)
		if err != nil {
			return fmt.Errorf("%s does not reach %s: %v\n%s", host, address, err, s.weft.Weft("dump-conntrack"))
		}
		if got != from {
			return fmt.Errorf("%s is seen as %s, expected %s", host, got, from)
		}
		return nil
	})
}

func (s *tracked) refused(host *lab.Host, address string, port int) {
	s.t.Helper()
	if got, err := caller(host, address, port); err == nil {
		s.t.Fatalf("%s reaches %s, as %s", host, address, got)
	}
}

func (s *tracked) dumped(pattern string, args ...string) {
	s.t.Helper()
	re := regexp.MustCompile("(?m)^" + pattern + "$")
	eventually(s.t, func() error {
		if out := s.weft.Weft(append([]string{"dump-conntrack"}, args...)...); !re.MatchString(out) {
			return fmt.Errorf("no line %s in\n%s", pattern, out)
		}
		return nil
	})
}

// The firewall that ovs-actions(7) prints as an example works.
func TestConntrackFirewall(t *testing.T) {
	t.Parallel()
	s := newTracked(t, `
table=0,priority=1,action=drop
table=0,priority=10,arp,action=normal
table=0,priority=100,ip,ct_state=-trk,action=ct(table=1)
table=1,in_port=1,ip,ct_state=+trk+new,action=ct(commit),2
table=1,in_port=1,ip,ct_state=+trk+est,action=2
table=1,in_port=2,ip,ct_state=+trk+new,action=drop
table=1,in_port=2,ip,ct_state=+trk+est,action=1
`)
	serve(t, s.inside, "10.0.0.1", 80)
	serve(t, s.outside, "192.0.2.2", 80)
	s.calls(s.inside, "192.0.2.2", 80, "10.0.0.1")
	s.refused(s.outside, "10.0.0.1", 80)
	s.dumped(`tcp,orig=\(src=10\.0\.0\.1,dst=192\.0\.2\.2,sport=\d+,dport=80\),reply=\(src=192\.0\.2\.2,dst=10\.0\.0\.1,sport=80,dport=\d+\),protoinfo=\(state=TIME_WAIT\)`)
	lab.MustPing(t, s.inside, "192.0.2.2", 3)
	if p, err := lab.Ping(s.outside, "10.0.0.1", 2); err == nil && p.Received != 0 {
		t.Fatalf("from outside: %+v", p)
	}
	s.dumped(`icmp,orig=\(src=10\.0\.0\.1,dst=192\.0\.2\.2,id=\d+,type=8,code=0\),reply=\(src=192\.0\.2\.2,dst=10\.0\.0\.1,id=\d+,type=0,code=0\)`)
	s.weft.Weft("flush-conntrack")
	if out := s.weft.Weft("dump-conntrack"); out != "" {
		t.Fatalf("after flush-conntrack:\n%s", out)
	}
	if err := iperf(s.inside, s.outside, "192.0.2.2"); err != nil {
		t.Fatal(err)
	}
}

func iperf(from, to *lab.Host, address string) error {
	f, err := lab.Iperf(from, to, address, 1)
	if err == nil && f.String() == "" {
		err = fmt.Errorf("nothing")
	}
	return err
}

const snatFlows = `
table=0,priority=10,arp,actions=normal
table=0,in_port=1,ip,actions=ct(commit,zone=5,nat(src=192.0.2.1-192.0.2.1:20000-20999),exec(set_field:0x7->ct_mark,set_field:0x9->ct_label)),2
table=0,in_port=2,ip,actions=ct(zone=5,nat,table=1)
table=1,in_port=2,ip,ct_state=+est+rpl,ct_mark=7,ct_label=9/0xf,ct_nw_src=10.0.0.1,actions=1
table=1,in_port=2,ip,ct_state=+rel,actions=1
table=0,in_port=1,ipv6,actions=ct(commit,zone=6,nat(src=2001:db8::1)),2
table=0,in_port=2,ipv6,actions=ct(zone=6,nat,table=2)
table=2,in_port=2,ipv6,ct_state=+est,actions=1
table=2,in_port=2,ipv6,ct_state=+rel,actions=1
`

// Source NAT hides the address of the guest inside. Answers and ICMP errors about its frames
// reach it.
func TestConntrackSNAT(t *testing.T) {
	t.Parallel()
	s := newTracked(t, snatFlows)
	serve(t, s.outside, "192.0.2.2", 80)
	serve(t, s.outside, "2001:db8::2", 80)
	s.calls(s.inside, "192.0.2.2", 80, "192.0.2.1")
	s.calls(s.inside, "2001:db8::2", 80, "2001:db8::1")
	s.dumped(`tcp,orig=\(src=10\.0\.0\.1,dst=192\.0\.2\.2,sport=\d+,dport=80\),reply=\(src=192\.0\.2\.2,dst=192\.0\.2\.1,sport=80,dport=20\d\d\d\),zone=5,mark=7,labels=0x9,protoinfo=\(state=TIME_WAIT\)`, "zone=5")
	s.dumped(`tcp,orig=\(src=fd00::1,dst=2001:db8::2,sport=\d+,dport=80\),reply=\(src=2001:db8::2,dst=2001:db8::1,sport=80,dport=\d+\),zone=6,protoinfo=\(state=TIME_WAIT\)`, "zone=6")
	lab.MustPing(t, s.inside, "192.0.2.2", 3)
	lab.MustPing(t, s.inside, "2001:db8::2", 3)
	for _, address := range []string{"192.0.2.2", "2001:db8::2"} {
		out, err := s.inside.Try("python3", "-c", fmt.Sprintf(`
import socket
s = socket.socket(socket.AF_INET6 if ":" in %q else socket.AF_INET, socket.SOCK_DGRAM)
s.settimeout(20)
s.connect((%q, 9))
s.send(b"x")
try:
    s.recv(10)
except ConnectionRefusedError:
    print("refused")
`, address, address))
		if strings.TrimSpace(out) != "refused" {
			t.Errorf("%s: the error about a datagram does not come back: %v %s\n%s", address, err, out, s.weft.Weft("dump-conntrack"))
		}
	}
	s.refused(s.outside, "10.0.0.1", 80)
	if err := iperf(s.inside, s.outside, "192.0.2.2"); err != nil {
		t.Fatal(err)
	}
}

// A stateful firewall in front of a tunnel permits only connections that the local
// guest begins. The outer headers are not tracked.
func TestConntrackOverTunnel(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.weft.Weft("del-flows")
	for _, f := range []string{
		"priority=10,arp,actions=normal",
		"priority=5,ip,ct_state=-trk,actions=ct(table=1,zone=3)",
		"table=1,in_port=guest,ip,ct_state=+new,actions=ct(commit,zone=3),output:overlay",
		"table=1,in_port=guest,ip,ct_state=+est,actions=output:overlay",
		"table=1,in_port=overlay,ip,ct_state=+est,actions=output:guest",
	} {
		s.weft.Weft("add-flow", f)
	}
	lab.MustPing(t, s.guest, remoteIP, 5)
	if p, err := lab.Ping(s.remote, guestIP, 2); err == nil && p.Received != 0 {
		t.Fatalf("from the other side: %+v", p)
	}
	if err := iperf(s.guest, s.remote, remoteIP); err != nil {
		t.Fatal(err)
	}
	out := s.weft.Weft("dump-conntrack")
	if strings.Contains(out, hostIP) || !strings.Contains(out, "tcp,orig=(src="+guestIP+",dst="+remoteIP) {
		t.Errorf("connections:\n%s", out)
	}
}

// FTP data connections pass only with alg=ftp.
func TestConntrackFTP(t *testing.T) {
	t.Parallel()
	for _, alg := range []string{",alg=ftp", ""} {
		s := newTracked(t, `
table=0,priority=10,arp,actions=normal
table=0,priority=10,ip,ct_state=-trk,actions=ct(table=1)
table=1,ip,ct_state=+est,in_port=1,actions=2
table=1,ip,ct_state=+est,in_port=2,actions=1
table=1,in_port=1,tcp,tp_dst=21,ct_state=+new,actions=ct(commit`+alg+`),2
table=1,in_port=1,ip,ct_state=+new+rel,actions=ct(commit),2
table=1,priority=1,actions=drop
`)
		s.outside.Start("python3", "-c", `
import socket
s = socket.create_server(("192.0.2.2", 21))
while True:
    c, a = s.accept()
    f = c.makefile("rw", newline="")
    f.write("220 hello\r\n"); f.flush()
    assert f.readline().strip() == "EPSV"
    d = socket.create_server(("192.0.2.2", 0))
    d.settimeout(5)
    f.write("229 Entering Extended Passive Mode (|||%d|)\r\n" % d.getsockname()[1]); f.flush()
    try:
        e, _ = d.accept()
        e.sendall(b"data"); e.close()
    except OSError: pass
    d.close(); c.close()
`)
		transfer := func() string {
			out, _ := s.inside.Try("python3", "-c", `
import socket, re
c = socket.create_connection(("192.0.2.2", 21), timeout=2)
f = c.makefile("rw", newline="")
f.readline()
f.write("EPSV\r\n"); f.flush()
port = int(re.search(r"\|\|\|(\d+)\|", f.readline()).group(1))
print("control")
print(socket.create_connection(("192.0.2.2", port), timeout=2).recv(10).decode())
`)
			return out
		}
		want := "control\ndata\n"
		eventually(t, func() error {
			out := transfer()
			if alg == "" && strings.HasPrefix(out, "control\n") && out != want || alg != "" && out == want {
				return nil
			}
			return fmt.Errorf("%q\n%s", out, s.weft.Weft("dump-conntrack"))
		})
	}
}

// Source NAT rewrites addresses in FTP's commands PORT and EPRT. The commands may get
// longer or shorter.
func TestConntrackFTPThroughSNAT(t *testing.T) {
	s := newTracked(t, `
table=0,priority=10,arp,actions=normal
table=0,priority=40000,in_port=1,tcp,tp_dst=21,actions=ct(commit,zone=5,alg=ftp,nat(src=192.0.2.1)),2
table=0,in_port=1,ip,actions=ct(zone=5,nat),2
table=0,in_port=2,ip,actions=ct(zone=5,nat,table=1)
table=0,priority=40000,in_port=1,tcp6,tp_dst=21,actions=ct(commit,zone=6,alg=ftp,nat(src=2001:db8::1)),2
table=0,in_port=1,ipv6,actions=ct(zone=6,nat),2
table=0,in_port=2,ipv6,actions=ct(zone=6,nat,table=2)
table=1,in_port=2,ip,ct_state=+est,actions=1
table=1,in_port=2,ip,ct_state=+new+rel,actions=ct(commit,zone=5,nat),1
table=2,in_port=2,ipv6,ct_state=+est,actions=1
table=2,in_port=2,ipv6,ct_state=+new+rel,actions=ct(commit,zone=6,nat),1
`)
	s.outside.Start("python3", "-c", `
import socket, threading
def session(c):
    f = c.makefile("rw", newline="")
    f.write("220 hello\r\n"); f.flush()
    for line in f:
        name, rest = line.strip().split(" ", 1)
        if name == "PORT":
            n = rest.split(",")
            to = (".".join(n[:4]), int(n[4]) * 256 + int(n[5]))
        else:
            n = rest.split("|")
            to = (n[2], int(n[3]))
        if to[0] != c.getpeername()[0]:
            f.write("500 of a third: %s\r\n" % to[0]); f.flush()
            continue
        d = socket.create_connection(to, timeout=5)
        d.sendall(b"data of " + to[0].encode()); d.close()
        f.write("226 sent\r\n"); f.flush()
def serve(s):
    while True:
        c, a = s.accept()
        threading.Thread(target=session, args=(c,)).start()
for family, address in (socket.AF_INET6, "2001:db8::2"), (socket.AF_INET, "192.0.2.2"):
    threading.Thread(target=serve, args=(socket.create_server((address, 21), family=family),)).start()
`)
	for address, outside := range map[string]string{"192.0.2.2": "192.0.2.1", "2001:db8::2": "2001:db8::1"} {
		eventually(t, func() error {
			out, _ := s.inside.Try("python3", "-c", fmt.Sprintf(`
import socket
c = socket.create_connection((%q, 21), timeout=3)
f = c.makefile("rw", newline="")
f.readline()
own = c.getsockname()[0]
for i in range(6):
    d = socket.create_server((own, 0), family=c.family)
    d.settimeout(3)
    port = d.getsockname()[1]
    if i %% 2 == 0 and c.family == socket.AF_INET:
        f.write("PORT %%s,%%d,%%d\r\n" %% (own.replace(".", ","), port >> 8, port & 255))
    else:
        f.write("EPRT |%%d|%%s|%%d|\r\n" %% (1 if c.family == socket.AF_INET else 2, own, port))
    f.flush()
    e, a = d.accept()
    print(a[0], e.makefile().read(), f.readline().strip())
`, address))
			want := strings.Repeat(address+" data of "+outside+" 226 sent\n", 6)
			if out != want {
				return fmt.Errorf("%q, expected %q\n%s", out, want, s.weft.Weft("dump-conntrack"))
			}
			return nil
		})
	}
}

// Fragments pass connection tracking and NAT in both directions.
func TestConntrackFragments(t *testing.T) {
	s := newTracked(t, snatFlows)
	lab.MustPing(t, s.inside, "192.0.2.2", 3, "-s", "4000")
	lab.MustPing(t, s.inside, "2001:db8::2", 3, "-s", "4000")
	s.outside.Start("python3", "-c", `
import socket
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.bind(("192.0.2.2", 5000))
while True:
    b, a = s.recvfrom(65536)
    s.sendto(b, a)
`)
	eventually(t, func() error {
		out, err := s.inside.Try("python3", "-c", `
import os, socket
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.settimeout(3)
s.connect(("192.0.2.2", 5000))
for n in (2000, 9000, 20000):
    b = os.urandom(n)
    s.send(b)
    assert s.recv(65536) == b
print("same")
`)
		if strings.TrimSpace(out) != "same" {
			return fmt.Errorf("%v: %s\n%s", err, out, s.weft.Weft("dump-conntrack"))
		}
		return nil
	})
}

// Destination NAT works. Together with source NAT it also works for a guest that
// connects to itself (hairpin).
func TestConntrackDNAT(t *testing.T) {
	t.Parallel()
	s := newTracked(t, `
table=0,priority=10,arp,actions=normal
table=0,priority=20,in_port=2,ip,nw_dst=192.0.2.9,actions=ct(commit,zone=1,nat(dst=10.0.0.1:8080)),1
table=0,priority=1,in_port=2,ip,actions=drop
table=0,priority=1,in_port=1,ip,actions=ct(zone=1,nat,table=1)
table=1,in_port=1,ip,ct_state=+est,actions=2
table=0,priority=20,in_port=2,ipv6,ipv6_dst=2001:db8::9,actions=ct(commit,zone=1,nat(dst=[fd00::1]:8080)),1
table=0,in_port=1,ipv6,actions=ct(zone=1,nat,table=1)
table=1,in_port=1,ipv6,ct_state=+est,actions=2
table=0,priority=30,in_port=1,ip,nw_dst=192.0.2.9,actions=ct(commit,zone=2,nat(dst=10.0.0.1:8080)),ct(commit,zone=3,nat(src=192.0.2.9)),set_field:02:00:00:00:00:01->eth_dst,in_port
table=0,priority=40,in_port=1,tcp,nw_src=10.0.0.1,nw_dst=192.0.2.9,tp_src=8080,actions=ct(zone=3,nat,table=3)
table=3,ip,actions=ct(zone=2,nat,table=4)
table=4,ip,ct_state=+est,actions=set_field:02:00:00:00:00:01->eth_dst,in_port
`)
	serve(t, s.inside, "10.0.0.1", 8080)
	serve(t, s.inside, "fd00::1", 8080)
	s.calls(s.outside, "192.0.2.9", 80, "192.0.2.2")
	s.calls(s.outside, "2001:db8::9", 80, "2001:db8::2")
	s.dumped(`tcp,orig=\(src=192\.0\.2\.2,dst=192\.0\.2\.9,sport=\d+,dport=80\),reply=\(src=10\.0\.0\.1,dst=192\.0\.2\.2,sport=8080,dport=\d+\),zone=1,protoinfo=\(state=TIME_WAIT\)`)
	s.refused(s.outside, "10.0.0.1", 8080)
	s.calls(s.inside, "192.0.2.9", 80, "192.0.2.9")
}

// craftUDP returns a small UDP datagram.
func craftUDP(t *testing.T, srcMAC, dstMAC, src, dst string, srcPort, dstPort int) []byte {
	t.Helper()
	frame := crafted(layers.EthernetTypeIPv4)
	frame.SrcMAC, _ = net.ParseMAC(srcMAC)
	frame.DstMAC, _ = net.ParseMAC(dstMAC)
	ip := &layers.IPv4{Version: 4, TTL: 64, Protocol: layers.IPProtocolUDP, SrcIP: net.ParseIP(src), DstIP: net.ParseIP(dst)}
	udp := &layers.UDP{SrcPort: layers.UDPPort(srcPort), DstPort: layers.UDPPort(dstPort)}
	udp.SetNetworkLayerForChecksum(ip)
	return serialize(t, frame, ip, udp, gopacket.Payload("weft"))
}

func echoes(host *lab.Host, address string, port, n int) *lab.Process {
	return host.Start("python3", "-c", fmt.Sprintf(`
import socket, time
c = socket.create_connection((%q, %d), timeout=60)
f = c.makefile("rw")
print(f.readline())
for i in range(%d):
    f.write("%%d\n" %% i); f.flush()
    assert f.readline() == "%%d\n" %% i
    time.sleep(0.05)
print("done")
`, address, port, n))
}

// Connections with NAT survive kills of engine and control, and a restart.
func TestConntrackSurvivesKills(t *testing.T) {
	t.Parallel()
	s := newTracked(t, snatFlows)
	serve(t, s.outside, "192.0.2.2", 80)
	s.calls(s.inside, "192.0.2.2", 80, "192.0.2.1")
	p := echoes(s.inside, "192.0.2.2", 80, 100)
	s.dumped(`tcp,orig=.*,zone=5,.*protoinfo=\(state=ESTABLISHED\)`)
	time.Sleep(500 * time.Millisecond)
	s.weft.KillEngine()
	time.Sleep(2 * time.Second)
	s.weft.Control().Kill()
	s.weft.Start()
	time.Sleep(time.Second)
	s.weft.Stop() // a stop removes the engine and the taps
	s.weft.Start()
	s.inside.Address("eth0", "10.0.0.1/24")
	s.outside.Address("eth0", "192.0.2.2/24")
	s.configure()
	if err := p.Wait(3 * settle); err != nil || !strings.Contains(p.Output(), "done") {
		t.Fatalf("%v\n%s\n%s", err, p.Output(), s.weft.Weft("dump-conntrack"))
	}
}

// The settings that the verbs beginning with ct- change take effect.
func TestConntrackSettings(t *testing.T) {
	t.Parallel()
	s := newTracked(t, snatFlows)
	s.weft.Weft("ct-set-limits", "default=5", "zone=5,limit=2", "zone=7,limit=0")
	if out := s.weft.Weft("ct-get-limits"); out != "default limit=5\nzone=5,limit=2,count=0\nzone=7,limit=0,count=0\n" {
		t.Errorf("ct-get-limits:\n%s", out)
	}
	s.weft.Weft("ct-del-limits", "zone=7")
	raw := s.inside.Raw("eth0")
	for port := range 20 {
		f := craftUDP(t, insideMAC, outsideMAC, "10.0.0.1", "192.0.2.2", 3000+port, 53)
		if err := raw.Send(f); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, func() error {
		if out := s.weft.Weft("ct-get-limits", "zone=5,7"); out != "default limit=5\nzone=5,limit=2,count=2\nzone=7,limit=5,count=0\n" {
			return fmt.Errorf("ct-get-limits:\n%s", out)
		}
		return nil
	})
	s.weft.Weft("ct-del-limits", "default", "zone=5")
	if out := s.weft.Weft("ct-get-limits", "zone=5"); out != "default limit=0\nzone=5,limit=0,count=2\n" {
		t.Errorf("ct-get-limits after ct-del-limits:\n%s", out)
	}
	s.weft.Weft("ct-timeout", "zone=5", "udp_first=3", "udp_single=3")
	if out := s.weft.Weft("ct-timeout", "zone=5"); !strings.Contains(out, "udp_first=3\n") || strings.Contains(s.weft.Weft("ct-timeout"), "udp_first=3\n") {
		t.Errorf("ct-timeout:\n%s", out)
	}
	s.weft.Weft("flush-conntrack", "zone=5")
	if err := raw.Send(craftUDP(t, insideMAC, outsideMAC, "10.0.0.1", "192.0.2.2", 4000, 53)); err != nil {
		t.Fatal(err)
	}
	s.dumped(`udp,.*`)
	eventually(t, func() error {
		if out := s.weft.Weft("dump-conntrack"); out != "" {
			return fmt.Errorf("not expired: %s", out)
		}
		return nil
	})
	if _, stderr, code := s.weft.TryWeft("ct-timeout", "udp_frist=1"); code != 2 || !strings.Contains(stderr, "udp_first") {
		t.Errorf("code %d: %s", code, stderr)
	}
	if _, _, code := s.weft.TryWeft("flush-conntrack", "zone=99999"); code != 2 {
		t.Errorf("code %d", code)
	}
	s.weft.Weft("ct-disable-tcp-seq-chk")
	if out := s.weft.Weft("ct-get-tcp-seq-chk"); out != "TCP sequence checking: disabled\n" {
		t.Errorf("%q", out)
	}
}

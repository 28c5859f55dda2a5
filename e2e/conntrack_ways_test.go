// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"net"
	"regexp"
	"strings"
	"testing"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"
)

// The flows of Open vSwitch's conntrack tutorial do what the tutorial says.
func TestConntrackTutorial(t *testing.T) {
	t.Parallel()
	s := newTracked(t, `
table=0,priority=10,arp,actions=normal
table=0, priority=50, ct_state=-trk, tcp, in_port=1, actions=ct(table=0)
table=0, priority=50, ct_state=+trk+new, tcp, in_port=1, actions=ct(commit),2
table=0, priority=50, ct_state=-trk, tcp, in_port=2, actions=ct(table=0)
table=0, priority=50, ct_state=+trk+est, tcp, in_port=2, actions=1
table=0, priority=50, ct_state=+trk+est, tcp, in_port=1, actions=2
`)
	serve(t, s.inside, "10.0.0.1", 80)
	serve(t, s.outside, "192.0.2.2", 80)
	s.calls(s.inside, "192.0.2.2", 80, "10.0.0.1")
	s.refused(s.outside, "10.0.0.1", 80)
	s.dumped(`tcp,orig=\(src=10\.0\.0\.1,dst=192\.0\.2\.2,sport=\d+,dport=80\),reply=\(src=192\.0\.2\.2,dst=10\.0\.0\.1,sport=80,dport=\d+\),protoinfo=\(state=TIME_WAIT\)`)
}

// With alg=tftp, the answer of a server from a new port belongs to the connection
// (state related), also with source NAT.
func TestConntrackTFTP(t *testing.T) {
	t.Parallel()
	s := newTracked(t, `
table=0,priority=10,arp,actions=normal
table=0,in_port=1,udp,tp_dst=69,actions=ct(commit,zone=5,alg=tftp,nat(src=192.0.2.1)),2
table=0,in_port=1,udp,tp_dst=70,actions=ct(commit,zone=5,nat(src=192.0.2.1)),2
table=0,priority=1,in_port=1,udp,actions=ct(zone=5,nat),2
table=0,in_port=2,udp,actions=ct(zone=5,nat,table=1)
table=1,in_port=2,udp,ct_state=+new+rel,ct_nw_src=10.0.0.1,actions=ct(commit,zone=5,nat),1
table=1,in_port=2,udp,ct_state=+est,actions=1
`)
	s.outside.Start("python3", "-c", `
import select, socket
both = [socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in (69, 70)]
for s, port in zip(both, (69, 70)): s.bind(("192.0.2.2", port))
while True:
    for s in select.select(both, [], [])[0]:
        b, a = s.recvfrom(600)
        d = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        d.bind(("192.0.2.2", 0))
        d.settimeout(0.5)
        d.sendto(b"\0\3\0\1data", a)
        try: assert d.recvfrom(600) == (b"\0\4\0\1", a)
        except OSError: continue
        d.sendto(b"\0\3\0\2end", a)
`)
	read := func(port int) string {
		out, _ := s.inside.Try("python3", "-c", fmt.Sprintf(`
import socket
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.settimeout(1)
s.sendto(b"\0\1file\0octet\0", ("192.0.2.2", %d))
b, a = s.recvfrom(600)
print(b[4:].decode())
s.sendto(b"\0\4" + b[2:4], a)
print(s.recv(600)[4:].decode())
`, port))
		return out
	}
	eventually(t, func() error {
		if out := read(69); out != "data\nend\n" {
			return fmt.Errorf("%q\n%s", out, s.weft.Weft("dump-conntrack"))
		}
		return nil
	})
	if out := read(70); strings.Contains(out, "data") {
		t.Errorf("without alg=tftp: %q", out)
	}
}

// Options of the action nat choose the port of a translation: hash always chooses the
// same one, random varies it. The option persistent keeps a guest's address.
func TestConntrackChoosesTranslation(t *testing.T) {
	s := newTracked(t, `
table=0,priority=10,arp,actions=normal
table=0,in_port=1,udp,tp_dst=1001,actions=ct(commit,nat(src=192.0.2.1:20000-29999,random)),2
table=0,in_port=1,udp,tp_dst=1002,actions=ct(commit,nat(src=192.0.2.1:20000-29999,hash)),2
table=0,in_port=1,udp,tp_dst=2048/0xfff0,actions=ct(commit,nat(src=192.0.2.10-192.0.2.250,persistent)),2
`)
	raw := s.inside.Raw("eth0")
	// chosen opens n connections, to the ports from dport on, and returns their
	// translations.
	chosen := func(dport, n int) (got []string) {
		t.Helper()
		s.weft.Weft("flush-conntrack")
		reply := regexp.MustCompile(`reply=\(src=192\.0\.2\.2,dst=([0-9.]+),sport=\d+,dport=(\d+)\)`)
		eventually(t, func() error {
			for i := range n {
				if err := raw.Send(craftUDP(t, insideMAC, outsideMAC, "10.0.0.1", "192.0.2.2", 3000, dport+i)); err != nil {
					return err
				}
			}
			out := s.weft.Weft("dump-conntrack")
			got = nil
			for _, m := range reply.FindAllStringSubmatch(out, -1) {
				got = append(got, m[1]+" "+m[2])
			}
			if len(got) != n {
				return fmt.Errorf("expected %d connections:\n%s", n, out)
			}
			return nil
		})
		return got
	}
	ports := regexp.MustCompile(`^192\.0\.2\.1 2\d{4}$`)
	for _, c := range []struct {
		method string
		dport  int
		equal  bool
	}{{"random", 1001, false}, {"hash", 1002, true}} {
		one, two, three := chosen(c.dport, 1)[0], chosen(c.dport, 1)[0], chosen(c.dport, 1)[0]
		if !ports.MatchString(one) || (one == two && two == three) != c.equal {
			t.Errorf("%s: %s, then %s, then %s", c.method, one, two, three)
		}
	}
	all := chosen(2048, 16)
	for _, got := range all {
		if address, _, _ := strings.Cut(got, " "); !strings.HasPrefix(all[0], address+" ") {
			t.Errorf("persistent: %s and %s", all[0], got)
		}
	}
}

// Counters of flows show the effects of zones from fields, ct_clear, force and invalid
// frames.
func TestConntrackFields(t *testing.T) {
	s := newTracked(t, `
table=0,priority=10,arp,actions=normal
table=0,in_port=1,udp,tp_dst=53,actions=load:7->NXM_NX_REG0[0..15],ct(commit,zone=NXM_NX_REG0[0..15],exec(set_field:0x5->ct_mark)),2
table=0,in_port=2,udp,tp_src=53,actions=ct(zone=7,table=1)
table=1,udp,ct_state=+est+rpl,ct_zone=7,ct_mark=5/7,ct_nw_src=10.0.0.1,ct_tp_dst=53,actions=ct_clear,resubmit(,2)
table=2,udp,ct_state=-trk,actions=1
table=0,in_port=2,udp,tp_dst=5000,actions=ct(commit,zone=9),1
table=0,in_port=1,udp,tp_src=5000,actions=ct(commit,force,zone=9),2
table=0,in_port=1,tcp,actions=ct(zone=8,table=3)
table=3,tcp,ct_state=+inv+trk,actions=drop
table=3,tcp,ct_state=+new,actions=2
`)
	inside, outside := s.inside.Raw("eth0"), s.outside.Raw("eth0")
	send := func(f []byte) {
		t.Helper()
		from := inside
		if f[11] == 2 { // outsideMAC ends with 2
			from = outside
		}
		if err := from.Send(f); err != nil {
			t.Fatal(err)
		}
	}
	out := func(sport, dport int) []byte {
		return craftUDP(t, insideMAC, outsideMAC, "10.0.0.1", "192.0.2.2", sport, dport)
	}
	back := func(sport, dport int) []byte {
		return craftUDP(t, outsideMAC, insideMAC, "192.0.2.2", "10.0.0.1", sport, dport)
	}
	counted := func(table int, n string) {
		t.Helper()
		eventually(t, func() error {
			got := s.weft.Weft("dump-flows", fmt.Sprint("table=", table))
			if !regexp.MustCompile(`n_packets=` + n + `,`).MatchString(got) {
				return fmt.Errorf("no flow has counted %s:\n%s", n, got)
			}
			return nil
		})
	}
	send(out(3000, 53))
	s.dumped(`udp,orig=\(src=10\.0\.0\.1,dst=192\.0\.2\.2,sport=3000,dport=53\),.*,zone=7,mark=5`)
	send(back(53, 3000))
	counted(2, "1") // counted in table 1 after ct_clear
	send(back(6000, 5000))
	s.dumped(`udp,orig=\(src=192\.0\.2\.2,dst=10\.0\.0\.1,sport=6000,dport=5000\),.*,zone=9`)
	send(out(5000, 6000))
	s.dumped(`udp,orig=\(src=10\.0\.0\.1,dst=192\.0\.2\.2,sport=5000,dport=6000\),.*,zone=9`)

	// a RST without a connection is invalid
	frame := crafted(layers.EthernetTypeIPv4)
	frame.SrcMAC, _ = net.ParseMAC(insideMAC)
	frame.DstMAC, _ = net.ParseMAC(outsideMAC)
	ip := &layers.IPv4{Version: 4, TTL: 64, Protocol: layers.IPProtocolTCP, SrcIP: net.ParseIP("10.0.0.1"), DstIP: net.ParseIP("192.0.2.2")}
	tcp := &layers.TCP{SrcPort: 3000, DstPort: 80, RST: true, Window: 100}
	tcp.SetNetworkLayerForChecksum(ip)
	send(serialize(t, frame, ip, tcp, gopacket.Payload(nil)))
	counted(3, "1")
}

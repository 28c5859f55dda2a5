// SPDX-License-Identifier: Apache-2.0

package conntrack

import (
	"strings"
	"testing"
)

func dump(r *rig, o FormatOptions) string {
	var buf []byte
	r.tr.Each(r.now, func(e *Entry) bool {
		buf = append(e.AppendTo(buf, o), '\n')
		return true
	})
	return string(buf)
}

func TestFormat(t *testing.T) {
	r := newRig(t, 64)
	req := commit
	req.Mark, req.MarkMask, req.Label, req.LabelMask = 5, 5, [2]uint64{1, 0x23}, [2]uint64{1, 0xff}
	r.expect(udpFrame(guest, server, 4), req, Tracked|New)
	r.expect(tcpFrame(guest6, srv6, tcpSegment{flags: "S", scale: -1}), Request{Commit: true}, Tracked|New)
	req = commit
	req.NAT = NAT{Kind: NATSrc, Lo: [2]uint64{0, 0xc0000201}}
	r.expect(icmpFrame("10.0.0.1", "10.0.1.1", 8, 0, 7), req, Tracked|New|SNAT)
	r.expect(icmpFrame("10.0.1.1", "192.0.2.1", 0, 0, 7), look, Tracked|Established|Reply)
	r.expect(otherFrame(47, "10.0.0.1", "10.0.1.1"), Request{Commit: true}, Tracked|New)
	want := `udp,orig=(src=10.0.0.1,dst=10.0.1.1,sport=1000,dport=80),reply=(src=10.0.1.1,dst=10.0.0.1,sport=80,dport=1000),zone=1,mark=5,labels=0x10000000000000023
tcp,orig=(src=fd00::1,dst=fd01::1,sport=1000,dport=80),reply=(src=fd01::1,dst=fd00::1,sport=80,dport=1000),protoinfo=(state=SYN_SENT)
icmp,orig=(src=10.0.0.1,dst=10.0.1.1,id=7,type=8,code=0),reply=(src=10.0.1.1,dst=192.0.2.1,id=7,type=0,code=0),zone=1
47,orig=(src=10.0.0.1,dst=10.0.1.1,sport=0,dport=0),reply=(src=10.0.1.1,dst=10.0.0.1,sport=0,dport=0)
`
	if got := dump(r, FormatOptions{}); got != want {
		t.Fatalf("got\n%sexpected\n%s", got, want)
	}
	if got := dump(r, FormatOptions{More: true, Statistics: true}); !strings.Contains(got,
		"dst=192.0.2.1,id=7,type=0,code=0),id=3,zone=1,status=SEEN_REPLY|CONFIRMED|SRC_NAT,timeout=30\n") {
		t.Fatal(got)
	}
}

func TestFilter(t *testing.T) {
	r := newRig(t, 64)
	r.expect(udpFrame(guest, server, 4), Request{Commit: true}, Tracked|New)
	r.expect(udpFrame(guest6, srv6, 4), commit, Tracked|New)
	r.expect(icmpFrame("10.0.0.1", "10.0.1.1", 8, 0, 7), Request{Commit: true}, Tracked|New)
	marked := commit
	marked.Zone, marked.Mark, marked.MarkMask = 2, 0xf5, ^uint32(0)
	marked.Label, marked.LabelMask = [2]uint64{7, 1}, [2]uint64{^uint64(0), ^uint64(0)}
	r.expect(udpFrame("10.0.0.9:1000", server, 4), marked, Tracked|New)
	for _, v := range []struct {
		args string
		want int
	}{
		{"", 4}, {"zone=0", 2}, {"zone=1", 1}, {"zone=2", 1}, {"zone=3", 0},
		// A partial tuple selects connections in all zones. A complete tuple selects a
		// connection in zone 0, in either direction.
		{"ct_nw_proto=17", 3}, {"zone=0 ct_nw_proto=17", 1}, {"ct_tp_src=1000", 3},
		{"ct_nw_src=10.0.0.1,ct_nw_dst=10.0.1.1,ct_nw_proto=17,ct_tp_src=1000,ct_tp_dst=80", 1},
		{"ct_nw_src=10.0.1.1,ct_nw_dst=10.0.0.1,ct_nw_proto=17,ct_tp_src=80,ct_tp_dst=1000", 1},
		{"ct_nw_src=10.0.1.1,ct_nw_dst=10.0.0.1,ct_nw_proto=1,icmp_type=0,icmp_code=0,icmp_id=7", 1},
		{"ct_nw_src=10.0.1.1,ct_nw_dst=10.0.0.1", 0},
		{"mark=0xf5", 1}, {"mark=5/0xf", 1}, {"mark=0", 3}, {"zone=2 mark=0xf5", 1}, {"zone=1 mark=0xf5", 0},
		{"labels=0x70000000000000001", 1}, {"labels=0x70000000000000000/0xf0000000000000000", 1}, {"labels=1/1", 1}, {"labels=0/1", 3},
		{"zone=2 mark=0xf5 labels=1/1 ct_nw_src=10.0.0.9 ct_nw_dst=10.0.0.9", 1}, {"mark=0xf5 labels=2/2", 0},
		{"mark=0xf5 ct_nw_src=10.0.0.1", 0},
		{"ct_nw_src=10.0.0.1", 2}, {"zone=1 ct_nw_src=10.0.0.1", 0}, {"ct_nw_proto=17,ct_tp_dst=80", 3},
		{"ct_nw_src=10.0.0.1,ct_nw_dst=10.0.1.1,ct_nw_proto=1,icmp_type=8,icmp_code=0,icmp_id=7", 1},
		{"icmp_id=8", 0}, {"zone=1 ct_ipv6_src=fd00::1,ct_ipv6_dst=fd01::1,ct_nw_proto=17,ct_tp_src=1000,ct_tp_dst=80", 1},
	} {
		f, err := ParseFilter(strings.Fields(v.args))
		if err != nil {
			t.Fatal(err)
		}
		n := 0
		r.tr.Each(r.now, func(e *Entry) bool {
			if f.Match(e) {
				n++
			}
			return true
		})
		if n != v.want {
			t.Errorf("filter %q selects %d connections, want %d", v.args, n, v.want)
		}
	}
	f, err := ParseFilter([]string{"", "ct_nw_dst=10.0.0.1"})
	if err != nil || f.Reply.Dst != end(guest).Addr() || f.Orig != (TupleFilter{}) {
		t.Fatalf("%+v, %v", f, err)
	}
	for _, bad := range [][]string{{"zone=65536"}, {"mark=0x100000000"}, {"mark=1/"}, {"mark=-1"}, {"labels=x"}, {"labels=1/0x1" + strings.Repeat("0", 32)},
		{"labels=0b" + strings.Repeat("0", 200)}, {"labels=1", "mark=1"}, {"nw_src=1.2.3.4"}, {"", "", ""}} {
		if _, err := ParseFilter(bad); err == nil {
			t.Errorf("ParseFilter accepts %q", bad)
		}
	}
	for bad, want := range map[string]string{
		"ct_nw_src=invalid":           `"ct_nw_src=invalid": expected an IPv4 address for ct_nw_src`,
		"ct_nw_dst=fd00::1":           `"ct_nw_dst=fd00::1": expected an IPv4 address for ct_nw_dst`,
		"ct_ipv6_src=10.0.0.1":        `"ct_ipv6_src=10.0.0.1": expected an IPv6 address for ct_ipv6_src`,
		"ct_ipv6_dst=fe80::1%eth0":    `"ct_ipv6_dst=fe80::1%eth0": expected an IPv6 address for ct_ipv6_dst`,
		"ct_nw_proto=tcp":             `"ct_nw_proto=tcp": expected a number from 0 to 255 for ct_nw_proto`,
		"ct_tp_src=70000":             `"ct_tp_src=70000": expected a number from 0 to 65535 for ct_tp_src`,
		"ct_nw_proto=6,ct_tp_dst=dns": `"ct_tp_dst=dns": expected a number from 0 to 65535 for ct_tp_dst`,
		"icmp_id=-1":                  `"icmp_id=-1": expected a number from 0 to 65535 for icmp_id`,
		"icmp_type=":                  `"icmp_type=": expected a number from 0 to 255 for icmp_type`,
		"icmp_code=256":               `"icmp_code=256": expected a number from 0 to 255 for icmp_code`,
	} {
		if _, err := ParseFilter([]string{bad}); err == nil || err.Error() != want {
			t.Errorf("ParseFilter of %q: %v, want %s", bad, err, want)
		}
	}
	var first Ref
	r.tr.Each(r.now, func(e *Entry) bool { first = e.Ref; return false })
	if !r.tr.Flush(first) || r.tr.Flush(first) || r.tr.Count() != 3 {
		t.Fatal("the connection survived the flush")
	}
}

// The output for a connection with a gateway (FTP or TFTP) names the gateway. An
// announced connection is listed until it begins or its announcement expires.
func TestFormatOfGateways(t *testing.T) {
	r := newRig(t, 64)
	req := commit
	req.ALG, req.Mark, req.MarkMask = ALGTFTP, 5, 5
	r.expect(udpFrame("10.0.0.1:3000", "10.0.1.1:69", 20), req, Tracked|New)
	want := "udp,orig=(src=10.0.0.1,dst=10.0.1.1,sport=3000,dport=69),reply=(src=10.0.1.1,dst=10.0.0.1,sport=69,dport=3000),zone=1,mark=5,helper=tftp\n"
	if got := dump(r, FormatOptions{}); got != want {
		t.Errorf("got\n%sexpected\n%s", got, want)
	}
	expected := func() (lines []string) {
		r.tr.EachExpected(r.now, func(e *Expected) { lines = append(lines, string(e.AppendTo(nil))) })
		return lines
	}
	want = "udp,orig=(src=10.0.1.1,dst=10.0.0.1,sport=0,dport=3000),zone=1,mark=5,parent=(src=10.0.0.1,dst=10.0.1.1,sport=3000,dport=69)"
	if got := expected(); len(got) != 1 || got[0] != want {
		t.Errorf("expectations %q, want %q", got, want)
	}
	r.expect(udpFrame("10.0.1.1:4444", "10.0.0.1:3000", 20), commit, Tracked|New|Related)
	if got := expected(); len(got) != 0 {
		t.Errorf("expectations after the announced connection has begun: %q", got)
	}
	r.expect(udpFrame("10.0.0.1:3001", "10.0.1.1:69", 20), req, Tracked|New)
	r.now += 200 * second
	if got := expected(); len(got) != 0 {
		t.Errorf("expectations after their expiry: %q", got)
	}
}

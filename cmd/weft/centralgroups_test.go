// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strings"
	"testing"

	"weft/cmd/exit"
)

// Verbs and files can declare groups. weft shows the ports of a group by their names, not by their ids.
func TestDeclareGroups(t *testing.T) {
	s := newFleetShell(t)
	s.example()
	before := s.export()
	s.ok("secgroup add admin id=g-admin")
	s.do(0, "secgroup", "add", "web", "id=g-web", "rules=in tcp 80,8000-8099 from 10.0.0.0/8; in tcp 22 from group admin")
	s.do(0, "secgroup", "set", "web", "allow=in icmp 8 from group web; out udp 53 to fd00::/64; out 47")
	s.do(0, "secgroup", "set", "g-web", "remove=in  tcp 22 from group g-admin")
	s.ok("port set web1 groups=web,admin")
	for line, want := range map[string]string{
		"secgroup show web": "group web id=g-web\n  in tcp 80,8000-8099 from 10.0.0.0/8\n  in icmp 8 from group web\n  out udp 53 to fd00::/64\n  out 47\nport web1\n",
		"secgroup list":     "admin  0      1      g-admin",
		"port show web1":    "admin,web  p-web1",
		"port list":         "admin,web  p-web1",
	} {
		if got := s.ok(line); !strings.Contains(got, want) {
			t.Errorf("weft %s:\n%swant %q", line, got, want)
		}
	}
	exported := s.export()
	if want := "+ group web rules=in tcp 80,8000-8099 from 10.0.0.0/8; in icmp 8 from group web; out udp 53 to fd00::/64; out 47\n"; !strings.Contains(exported, want) {
		t.Errorf("%swant %q", exported, want)
	}
	s.ok("secgroup set admin name=ops")
	if got := s.ok("port show web1"); !strings.Contains(got, "ops,web") {
		t.Error(got)
	}
	s.ok("port set web1 groups=")
	s.ok("secgroup del web")
	s.ok("secgroup del ops")
	s.expect(before)
}

func TestGroupsRefuse(t *testing.T) {
	s := newFleetShell(t)
	s.example()
	s.ok("secgroup add web id=g-web")
	before := s.export()
	for words, want := range map[string]string{
		"secgroup|add|web":                                                "web: the name is declared already",
		"secgroup|set|web|rules=ingress tcp 80":                           "ingress: expected in or out",
		"secgroup|set|web|rules=in tpc 80":                                "tpc: expected any, tcp, udp, sctp, icmp, icmp6 or a number",
		"secgroup|set|web|rules=in tcp 80,99999":                          "99999: expected a port from 0 to 65535",
		"secgroup|set|web|rules=in tcp 90-80":                             "90-80: expected a port",
		"secgroup|set|web|rules=in any 80":                                "80: ports need the protocol tcp, udp or sctp",
		"secgroup|set|web|rules=in icmp 256":                              "256: expected an ICMP type",
		"secgroup|set|web|rules=in tcp 80 to 10.0.0.0/8":                  "to: expected from",
		"secgroup|set|web|rules=out tcp 80 from 10.0.0.0/8":               "from: expected to",
		"secgroup|set|web|rules=in tcp 80 from 10.0.0.1/8":                "10.0.0.1/8: has bits of a host; did you mean 10.0.0.0/8?",
		"secgroup|set|web|rules=in tcp 80 from db":                        "db: expected a prefix",
		"secgroup|set|web|rules=in tcp 80 from group db":                  "db: no such group; expected one of web",
		"secgroup|set|web|rules=in":                                       "expected in|out PROTOCOL",
		"secgroup|set|web|remove=in tcp 80":                               `group web has no rule "in tcp 80"`,
		"secgroup|set|web|frob=1":                                         "frob=: unknown key; expected one of name= rules= allow= remove=",
		"secgroup|set|db|rules=":                                          "db: no such group",
		"secgroup|set|web|rules=" + strings.Repeat("in tcp 80;", 129):     "129 rules; expected at most 128",
		"secgroup|set|web|rules=in tcp " + strings.Repeat("1,", 16) + "1": "17 ranges of ports; expected at most 16",
		"port|set|web1|groups=web,db":                                     "groups=: db: no such group",
		"port|set|web1|groups=web,g-web":                                  "groups=: g-web is there twice",
		"port|set|web1|groups=1,2,3,4,5,6,7,8,9":                          "groups=: 9 of them; expected at most 8",
	} {
		if got := s.do(exit.Input, strings.Split(words, "|")...); !strings.Contains(got, want) {
			t.Errorf("weft %s: %q, expected %q", words, got, want)
		}
	}
	s.expect(before)
}

// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"regexp"
	"strings"
	"testing"

	"weft/api"
)

// At the limit of connections, a new connection evicts an unanswered one from the
// zone with the most unanswered connections. Answered connections stay.
func TestConntrackTableLimit(t *testing.T) {
	const limit = 12
	s := newTracked(t, `
table=0,priority=10,arp,actions=normal
table=0,in_port=1,udp,tp_dst=53,actions=ct(commit,zone=1)
table=0,cookie=0x1,in_port=2,udp,tp_src=53,actions=ct(zone=1)
table=0,in_port=1,udp,tp_dst=54,actions=ct(commit,zone=2)
`)
	inside, outside := s.inside.Raw("eth0"), s.outside.Raw("eth0")
	begin := func(from, n, dport int) {
		t.Helper()
		for i := range n {
			if err := inside.Send(craftUDP(t, insideMAC, outsideMAC, "10.0.0.1", "192.0.2.2", from+i, dport)); err != nil {
				t.Fatal(err)
			}
		}
	}
	has := func(zone, n int) {
		t.Helper()
		want := fmt.Sprintf("zone=%d,limit=0,count=%d\n", zone, n)
		eventually(t, func() error {
			if out := s.weft.Weft("ct-get-limits", fmt.Sprint("zone=", zone)); !strings.HasSuffix(out, want) {
				return fmt.Errorf("%s, expected %s\n%s", out, want, s.weft.Weft("dump-conntrack", "-s"))
			}
			return nil
		})
	}
	evicted := func() int {
		var c api.Conntrack
		s.weft.WeftJSON(&c, "ct-get-nconns")
		return int(c.Evicted + c.RefusedLimit)
	}
	s.weft.Weft("ct-set-maxconns", fmt.Sprint(limit))
	if out := s.weft.Weft("ct-get-maxconns"); out != fmt.Sprintln(limit) {
		t.Errorf("ct-get-maxconns: %q", out)
	}

	// each connection begins alone, because its later frames may overtake its first
	// frame
	begin(3000, 1, 53)
	has(1, 1)
	begin(3001, 3, 53) // the test answers two of these three connections below
	has(1, 4)
	for port := range 2 {
		if err := outside.Send(craftUDP(t, outsideMAC, insideMAC, "192.0.2.2", "10.0.0.1", 53, 3000+port)); err != nil {
			t.Fatal(err)
		}
	}
	s.counts("cookie=0x1,", 2)
	begin(4000, 1, 54)
	has(2, 1)
	begin(4001, 49, 54)
	has(2, limit-4)
	eventually(t, func() error {
		if n := evicted(); n != 50-(limit-4) {
			return fmt.Errorf("%d evicted", n)
		}
		return nil
	})
	has(1, 4)
	if out := s.weft.Weft("ct-get-nconns"); out != fmt.Sprintln(limit) {
		t.Errorf("ct-get-nconns: %q", out)
	}
	out := s.weft.Weft("dump-conntrack", "zone=2")
	for port := 4000 + 50 - (limit - 4); port < 4050; port++ { // the newest connections stay
		if !strings.Contains(out, fmt.Sprintf("sport=%d,", port)) {
			t.Errorf("the oldest connections were not evicted first: source port %d is missing in\n%s", port, out)
		}
	}

	// zone 1 now has the most unanswered connections, so new ones evict its connections
	begin(5000, 50, 53)
	eventually(t, func() error {
		if n := evicted(); n != 100-(limit-4) {
			return fmt.Errorf("%d evicted", n)
		}
		return nil
	})
	out = s.weft.Weft("dump-conntrack", "zone=1")
	if n := len(regexp.MustCompile(`sport=300[01],`).FindAllString(out, -1)); n != 2 || strings.Contains(out, "sport=3002,") {
		t.Errorf("zone 1, of which 3000 and 3001 were answered:\n%s", out)
	}

	// flush-conntrack deletes one connection of a zone, then all of the zone, then all
	// connections.
	s.weft.Weft("flush-conntrack", "zone=1", "ct_nw_src=10.0.0.1,ct_nw_dst=192.0.2.2,ct_nw_proto=17,ct_tp_src=3000,ct_tp_dst=53")
	left := s.weft.Weft("dump-conntrack", "zone=1")
	if n := strings.Count(out, "\n"); strings.Contains(left, "sport=3000,") || !strings.Contains(left, "sport=3001,") || strings.Count(left, "\n") != n-1 {
		t.Errorf("flush-conntrack of one of\n%sleaves\n%s", out, left)
	}
	s.weft.Weft("flush-conntrack", "zone=2")
	if all := s.weft.Weft("dump-conntrack"); all != left {
		t.Errorf("flush-conntrack zone=2 of\n%sleaves\n%s", left, all)
	}
	s.weft.Weft("flush-conntrack")
	s.weft.Weft("ct-set-maxconns", "0")
	begin(6000, limit+8, 54)
	has(2, limit+8)
	if _, stderr, code := s.weft.TryWeft("ct-set-maxconns", "4294967295"); code == 0 || !strings.Contains(stderr, "maxconns 4294967295: expected at most") || strings.Count(stderr, "\n") != 1 {
		t.Errorf("code %d: %q", code, stderr)
	}
}

// SPDX-License-Identifier: Apache-2.0

package xlate

import (
	"fmt"
	"strings"
	"testing"

	"weft/flowtable"
	"weft/openflow"
)

// If no prefix matches a frame, the frame's megaflow matches few bits of addresses and
// ports.
func TestPrefixesAreNotExact(t *testing.T) {
	tests := []struct{ name, flows, frame, mask string }{
		{"far away", "priority=40000,ip,nw_src=10.0.0.0/24,actions=drop\nactions=2", "in_port=1,ip,nw_src=172.16.0.1", "ip,in_port=1,nw_src=172.0.0.0/8"},
		{"near", "priority=40000,ip,nw_src=10.0.0.0/24,actions=drop\nactions=2", "in_port=1,ip,nw_src=10.0.1.1", "ip,in_port=1,nw_src=10.0.1.0/24"},
		{"inside", "priority=40000,ip,nw_src=10.0.0.0/24,actions=4\nactions=2", "in_port=1,ip,nw_src=10.0.0.1", "ip,in_port=1,nw_src=10.0.0.0/24"},
		{"another length", "priority=40000,ip,nw_dst=10.0.0.0/8,actions=4\npriority=50000,ip,nw_dst=192.168.7.1,actions=5\nactions=2",
			"in_port=1,ip,nw_dst=10.9.9.9", "ip,in_port=1,nw_dst=10.0.0.0/8"},
		{"port", "priority=40000,tcp,tp_dst=80,actions=drop\nactions=2", "in_port=1,tcp,tp_dst=443", "tcp,in_port=1,nw_frag=no,tp_dst=0x100/0xff00"},
		{"ipv6", "priority=40000,ipv6,ipv6_dst=2001:db8::/32,actions=drop\nactions=2", "in_port=1,ipv6,ipv6_dst=fe80::1", "ipv6,in_port=1,ipv6_dst=fe80::/16"},
		{"tunnel", "priority=40000,tun_src=192.0.2.0/24,actions=drop\nactions=2", "in_port=1,tun_src=10.0.0.1", "tun_src=10.0.0.0/8,in_port=1"},
		{"not a prefix", "priority=40000,ip,nw_src=0.0.0.1/0.0.0.1,actions=drop\nactions=2", "in_port=1,ip,nw_src=10.0.0.2", "ip,in_port=1,nw_src=0.0.0.0/0.0.0.1"},
	}
	for _, tt := range tests {
		p := pipelineOf(t, strings.Split(tt.flows, "\n")...)
		k := keyOfText(t, tt.frame)
		tr := Translate(p, &k, newEnv())
		m := openflow.MatchOf(&k, &tr.Mask)
		if got := openflow.FormatMatch(&m, nil); got != tt.mask {
			t.Errorf("%s: mask %s, want %s", tt.name, got, tt.mask)
		}
	}
}

// A sender that tries all prefixes of a list of rules creates a limited number of
// masks.
func TestMasksOfPrefixesAreFew(t *testing.T) {
	var flows []string
	for n := 1; n <= 32; n++ {
		flows = append(flows, fmt.Sprintf("priority=%d,ip,nw_src=10.20.30.41/%d,actions=drop", n, n),
			fmt.Sprintf("priority=%d,ip,nw_dst=10.20.30.41/%d,actions=drop", n, n))
	}
	for n := 1; n <= 16; n++ {
		flows = append(flows, fmt.Sprintf("priority=%d,udp,tp_src=0x1235/0x%x,actions=drop", n, 0xffff<<(16-n)&0xffff),
			fmt.Sprintf("priority=%d,udp,tp_dst=0x1235/0x%x,actions=drop", n, 0xffff<<(16-n)&0xffff))
	}
	p := pipelineOf(t, append(flows, "priority=0,actions=2")...)
	env := newEnv()
	masks := map[flowtable.Key]bool{}
	for n := range 32 * 32 * 17 {
		var f openflow.Flow
		copy(f[:], func() []uint64 { k := keyOfText(t, "in_port=1,udp"); return k[:] }())
		put := func(id openflow.FieldID, v uint64) {
			openflow.WholeField(id).Put(&f, openflow.Value64(v), openflow.WholeField(id).Ones())
		}
		put(openflow.FIPSrc, 0x0a141e29^1<<(n%32))
		put(openflow.FIPDst, 0x0a141e29^1<<(n/32%32))
		put(openflow.FTCPSrc, 0x1235^1<<(n/1024%17)&0xffff)
		put(openflow.FTCPDst, 0x1235^1<<(n%17)&0xffff)
		k := key(&f)
		masks[Translate(p, &k, env).Mask] = true
	}
	if n := len(masks); n > 100 {
		t.Errorf("%d masks, want at most 100", n)
	} else if n < 10 {
		t.Errorf("only %d masks: the frames do not vary enough", n)
	} else {
		t.Logf("%d masks", n)
	}
}

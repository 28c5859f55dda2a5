// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"math/rand/v2"
)

// The functions below return flow tables for the flow table experiments, and the flows of frames that
// match them.

// rules is a flow table in the syntax of ovs-ofctl. sent has the UDP flows that guest 0 and guest 1
// send, all of which the table forwards.
type rules struct {
	flows func(guest func(int) string) []string
	sent  [2][]tuple
}

func (t tuple) match() string {
	return fmt.Sprintf("udp,nw_src=%s,nw_dst=%s,tp_src=%d,tp_dst=%d", dotted(t.src), dotted(t.dst), t.srcPort, t.dstPort)
}

func dotted(a uint32) string {
	return fmt.Sprintf("%d.%d.%d.%d", byte(a>>24), byte(a>>16), byte(a>>8), byte(a))
}

// exactRules returns a table of n flows. Each flow matches exactly one 5-tuple.
func exactRules(n int) *rules {
	s := &rules{}
	for way := range s.sent {
		for i := range max(n/2, 1) {
			k := uint32(i)
			s.sent[way] = append(s.sent[way], tuple{10<<24 | uint32(way)<<23 | k>>2, 10<<24 | 1<<22 | k>>6, uint16(1024 + k%1000), uint16(2000 + k%7)})
		}
	}
	s.flows = func(guest func(int) string) []string {
		var list []string
		for way, sent := range s.sent {
			for _, t := range sent {
				list = append(list, fmt.Sprintf("priority=100,in_port=%s,%s,actions=output:%s", guest(way), t.match(), guest(1-way)))
			}
		}
		return list
	}
	return s
}

// pairRules returns a table of 100,000 flows. Each flow matches a pair of addresses, and ten
// connections are sent through each flow.
func pairRules() *rules {
	s := &rules{}
	const pairs, connections = 50_000, 10
	for way := range s.sent {
		for i := range uint32(pairs * connections) {
			k := i % pairs
			s.sent[way] = append(s.sent[way], tuple{10<<24 | uint32(way)<<23 | k, 10<<24 | 1<<22 | k>>4, uint16(1024 + i/pairs), uint16(2000 + k%7)})
		}
	}
	s.flows = func(guest func(int) string) []string {
		var list []string
		for way, sent := range s.sent {
			for _, t := range sent[:pairs] {
				list = append(list, fmt.Sprintf("priority=100,in_port=%s,ip,nw_src=%s,nw_dst=%s,actions=output:%s", guest(way), dotted(t.src), dotted(t.dst), guest(1-way)))
			}
		}
		return list
	}
	return s
}

// maskRules returns a table of 10,000 flows with "masks" different destination ports. The flows with
// the same destination port have the same prefix lengths of the addresses, and no two ports have the
// same pair of prefix lengths.
func maskRules(masks int) *rules {
	s := &rules{}
	const total = 10_000
	type rule struct {
		t        tuple
		src, dst int // prefix lengths of the addresses
		table    int
	}
	var all [2][]rule
	for way := range s.sent {
		for i := range total / 2 {
			m, k := i%masks, uint32(i/masks)
			r := rule{t: tuple{10<<24 | uint32(way)<<23 | k<<8 | 1, 11<<24 | k<<8 | 2, uint16(1024 + i%5000), uint16(1000 + m)}, src: 24 + m%8, dst: 24 + m/8, table: 1 + m}
			all[way] = append(all[way], r)
			s.sent[way] = append(s.sent[way], r.t)
		}
	}
	s.flows = func(guest func(int) string) []string {
		var list []string
		for m := range masks {
			list = append(list, fmt.Sprintf("table=0,priority=100,udp,tp_dst=%d,actions=resubmit(,%d)", 1000+m, 1+m))
		}
		for way := range all {
			for _, r := range all[way] {
				list = append(list, fmt.Sprintf("table=%d,priority=100,in_port=%s,ip,nw_src=%s/%d,nw_dst=%s/%d,actions=output:%s",
					r.table, guest(way), dotted(r.t.src), r.src, dotted(r.t.dst), r.dst, guest(1-way)))
			}
		}
		return list
	}
	return s
}

// aclRule is an entry of a firewall's access list. The first entry that matches decides.
type aclRule struct {
	src, dst         uint32
	srcBits, dstBits int
	port, portMask   uint16 // destination port and its mask
	allow            bool
}

func (a *aclRule) covers(t tuple) bool {
	return (t.src^a.src)&prefix(a.srcBits) == 0 && (t.dst^a.dst)&prefix(a.dstBits) == 0 && (t.dstPort^a.port)&a.portMask == 0
}

func prefix(bits int) uint32 { return ^uint32(uint64(1)<<(32-bits) - 1) }

// aclRules returns a random access list of n entries, and 10,000 connections that the list allows. The
// seed is fixed, so every call with the same n returns the same list.
func aclRules(n int) *rules {
	random := rand.New(rand.NewPCG(7, uint64(n)))
	var list []aclRule
	for len(list) < n-1 {
		a := aclRule{srcBits: []int{0, 8, 16, 20, 24, 28, 32}[random.IntN(7)], dstBits: []int{16, 20, 24, 26, 28, 30, 32}[random.IntN(7)], allow: random.IntN(10) < 7}
		a.src = (10<<24 | random.Uint32()&0xffffff) & prefix(a.srcBits)
		a.dst = (10<<24 | random.Uint32()&0xffffff) & prefix(a.dstBits)
		switch random.IntN(3) {
		case 0: // any port
			list = append(list, a)
		case 1:
			a.port, a.portMask = uint16([]int{22, 53, 80, 123, 443, 514, 3306, 5432, 8080}[random.IntN(9)]), 0xffff
			list = append(list, a)
		default:
			from := uint32(random.IntN(60000))
			for _, r := range maskedPorts(from, min(from+uint32(1+random.IntN(5000)), 0xffff)) {
				a.port, a.portMask = r[0], r[1]
				list = append(list, a)
			}
		}
	}
	list = append(list[:n-1], aclRule{allow: true}) // the last entry allows everything else
	s := &rules{sent: [2][]tuple{aclTuples(random, list), aclTuples(random, list)}}
	s.flows = func(guest func(int) string) []string {
		texts := []string{"table=0,priority=100,in_port=" + guest(0) + ",actions=load:" + "1" + "->NXM_NX_REG0[],resubmit(,1)",
			"table=0,priority=100,in_port=" + guest(1) + ",actions=load:" + "2" + "->NXM_NX_REG0[],resubmit(,1)",
			"table=2,reg0=1,actions=output:" + guest(1), "table=2,reg0=2,actions=output:" + guest(0)}
		for i := range list {
			texts = append(texts, list[i].text(60000-i))
		}
		return texts
	}
	return s
}

func (a *aclRule) text(priority int) string {
	text := fmt.Sprintf("table=1,priority=%d,udp", priority)
	if a.srcBits > 0 {
		text += fmt.Sprintf(",nw_src=%s/%d", dotted(a.src), a.srcBits)
	}
	if a.dstBits > 0 {
		text += fmt.Sprintf(",nw_dst=%s/%d", dotted(a.dst), a.dstBits)
	}
	if a.portMask != 0 {
		text += fmt.Sprintf(",tp_dst=0x%x/0x%x", a.port, a.portMask)
	}
	if a.allow {
		return text + ",actions=resubmit(,2)"
	}
	return text + ",actions=drop"
}

func maskedPorts(from, to uint32) (list [][2]uint16) {
	for from <= to {
		size := uint32(1)
		for from&(2*size-1) == 0 && from+2*size-1 <= to {
			size *= 2
		}
		list = append(list, [2]uint16{uint16(from), uint16(^(size - 1))})
		from += size
	}
	return list
}

// aclTuples returns 5,000 random connections that the access list allows.
func aclTuples(random *rand.Rand, list []aclRule) []tuple {
	var out []tuple
	for len(out) < 5_000 {
		a := &list[random.IntN(len(list))]
		t := tuple{a.src | random.Uint32()&^prefix(a.srcBits), a.dst | random.Uint32()&^prefix(a.dstBits),
			uint16(1024 + random.IntN(60000)), a.port | uint16(random.IntN(65536))&^a.portMask}
		if a.srcBits == 0 {
			t.src = 10<<24 | t.src&0xffffff
		}
		for i := range list {
			if list[i].covers(t) {
				if list[i].allow {
					out = append(out, t)
				}
				break
			}
		}
	}
	return out
}

// attackRules returns 64 flows in each direction between guests 0 and 1, and an access list for guest
// 2. Each entry of this list matches a single address or port.
func attackRules() *rules {
	s := exactRules(128)
	pair := s.flows
	s.flows = func(guest func(int) string) []string {
		port := guest(2)
		return append(pair(guest),
			"priority=40,in_port="+port+",udp,nw_src=10.0.0.10,actions=output:"+guest(0),
			"priority=30,in_port="+port+",udp,nw_dst=10.0.0.20,actions=output:"+guest(0),
			"priority=20,in_port="+port+",udp,tp_src=12345,actions=output:"+guest(0),
			"priority=10,in_port="+port+",udp,tp_dst=80,actions=output:"+guest(0),
			"priority=1,in_port="+port+",actions=drop")
	}
	return s
}

// attackTuples returns UDP flows that each need a megaflow with another mask. Each of the four fields
// differs from the access list's entry. The mask of the field reaches to the first bit that differs,
// and each flow has another combination of first bits.
func attackTuples() []tuple {
	random := rand.New(rand.NewPCG(11, 1))
	differ := func(value uint32, width, offset int) uint32 {
		rest := uint32(uint64(1)<<(width-1-offset) - 1)
		return (value^1<<(width-1-offset))&^rest | random.Uint32()&rest
	}
	var list []tuple
	for range 4 {
		for a := range 32 {
			for b := range 32 {
				for c := range 16 {
					for d := range 16 {
						list = append(list, tuple{differ(10<<24|10, 32, a), differ(10<<24|20, 32, b),
							uint16(differ(12345, 16, c)), uint16(differ(80, 16, d))})
					}
				}
			}
		}
	}
	random.Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
	return list
}

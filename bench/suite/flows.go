package main

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// Flow tables: many flows, many masks, lists of rules as firewalls have them,
// first packets, large files of flows, and a sender that makes masks. The same
// rules and the same frames for each peer.

func flowsFamily() []*experiment {
	peers := []string{weftPeer, ovsPeer}
	var list []*experiment
	add := func(name, unit string, do func(r *run, peer string) (float64, error)) *experiment {
		e := &experiment{name: "flows-" + name, unit: unit, peers: peers, do: do}
		list = append(list, e)
		return e
	}
	rate := func(name string, make func() *rules) {
		add(name, "frames/s", func(r *run, peer string) (float64, error) { return measureRules(r, peer, make()) })
	}
	for _, n := range []int{1, 1_000, 10_000, 100_000} {
		rate("exact/"+strconv.Itoa(n), func() *rules { return exactRules(n) })
	}
	rate("pairs/1000000", pairRules)
	for _, n := range []int{10, 50} {
		rate("masks/"+strconv.Itoa(n), func() *rules { return maskRules(n) })
	}
	for _, n := range []int{1_000, 10_000} {
		rate("acl/"+strconv.Itoa(n), func() *rules { return aclRules(n) })
	}
	add("misses/100000", "misses/s", measureMisses)
	for _, bundle := range []bool{true, false} {
		name := map[bool]string{true: "bundle", false: "plain"}[bundle]
		add("install-"+name+"/100000", "s", func(r *run, peer string) (float64, error) { return measureInstall(r, peer, bundle) }).less = true
	}
	for _, perSecond := range []int{1_000, 20_000, 100_000} {
		add(fmt.Sprintf("attack/%d", perSecond), "part left", func(r *run, peer string) (float64, error) { return measureAttack(r, peer, perSecond) })
	}
	return list
}

// rules are flows for ovs-ofctl, and frames that they let through: those that
// guest 0 sends reach guest 1, and the reverse.
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

// exactRules are rules of one connection each, half of n each way, but one at
// least.
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

// pairRules are 100,000 rules of a pair of addresses each, and a million
// connections, ten for each pair.
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

// maskRules are 10,000 rules of that many masks: the destination port leads to a
// table, each of which matches prefixes of other lengths.
func maskRules(masks int) *rules {
	s := &rules{}
	const total = 10_000
	type rule struct {
		t        tuple
		src, dst int // prefixes
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

// aclRule is a rule of a firewall's list, the first that matches counting. Port
// ranges are written as masked ports, one rule each.
type aclRule struct {
	src, dst         uint32
	srcBits, dstBits int
	port, portMask   uint16 // of the destination
	allow            bool
}

func (a *aclRule) covers(t tuple) bool {
	return (t.src^a.src)&prefix(a.srcBits) == 0 && (t.dst^a.dst)&prefix(a.dstBits) == 0 && (t.dstPort^a.port)&a.portMask == 0
}

func prefix(bits int) uint32 { return ^uint32(uint64(1)<<(32-bits) - 1) }

// aclRules is a list of n rules as firewalls have them, made up with a fixed
// seed, and 10,000 connections that it lets through, as likely to hit any rule.
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
	list = append(list[:n-1], aclRule{allow: true}) // what no rule speaks of passes
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

// maskedPorts are a range of ports as values and masks.
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

// aclTuples are 5,000 connections that the list lets through.
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

// runPair starts the switch with the rules and lets the guests, extra ones beside
// the two, do what spec says.
func runPair(r *run, peer string, s *rules, spec guestsSpec, extra int) (guestsReport, error) {
	var result guestsReport
	for way, sent := range s.sent {
		spec.Flows[way] = filepath.Join(r.dir, fmt.Sprint("sent", way))
		if err := writeTuples(spec.Flows[way], sent); err != nil {
			return result, err
		}
	}
	flows := func(guest func(int) string, _ string) []string { return s.flows(guest) }
	if err := newSwitch(peer).up(r, setup{guests: 2 + extra, flows: flows}); err != nil {
		return result, err
	}
	p, err := startLoad(r, guestsVerb, 2+extra, spec)
	if err != nil {
		return result, err
	}
	if err := p.reports(spec.Warm*2+spec.Length+20*time.Second, &result); err != nil {
		return result, err
	}
	return result, someCame(result.Frames)
}

// settleTime is how long frames circulate before they are counted, settlePerFlow
// longer for each megaflow that is to be installed before that: a switch that does
// not install all that miss needs several rounds.
const (
	settleTime    = 500 * time.Millisecond
	settlePerFlow = 20 * time.Microsecond
	megaflowsMost = 100_000
)

func measureRules(r *run, peer string, s *rules) (float64, error) {
	warm := settleTime + time.Duration(min(2*len(s.sent[0]), megaflowsMost))*settlePerFlow
	result, err := runPair(r, peer, s, guestsSpec{Warm: warm, Length: r.length}, 0)
	if err != nil {
		return 0, err
	}
	r.note("lost", "frames", float64(result.Lost))
	return result.Frames, nil
}

// measureMisses sends one frame each of 100,000 flows through empty caches.
func measureMisses(r *run, peer string) (float64, error) {
	s := exactRules(100_000)
	result, err := runPair(r, peer, s, guestsSpec{Until: 100_000, Length: 10 * time.Second}, 0)
	return result.Frames, err
}

// measureInstall adds 100,000 flows from a file to a switch that has none.
func measureInstall(r *run, peer string, bundle bool) (float64, error) {
	sw := newSwitch(peer)
	if err := sw.up(r, setup{guests: 2, flows: func(func(int) string, string) []string { return nil }}); err != nil {
		return 0, err
	}
	before, err := sw.(resident).resident()
	if err != nil {
		return 0, err
	}
	s := exactRules(100_000)
	var file string
	var add func() error
	switch sw := sw.(type) {
	case *weft:
		file, err = writeFlows(r, setup{flows: func(func(int) string, string) []string { return s.flows(guestName) }}, nil, "")
		verb := []string{"add-flows", file}
		if bundle {
			verb = []string{"--bundle", "add-flows", file}
		}
		add = func() error { _, err := sw.cli(verb...); return err }
	case *ovs:
		file, err = writeFlows(r, setup{flows: func(func(int) string, string) []string {
			return s.flows(func(i int) string { return fmt.Sprint(ovsPort(i)) })
		}}, nil, "")
		verb := []string{"add-flows", "br0", file}
		if bundle {
			verb = append([]string{"--bundle"}, verb...)
		}
		add = func() error { _, err := command(sw.env, "ovs-ofctl", verb...); return err }
	}
	if err != nil {
		return 0, err
	}
	began := time.Now()
	if err := add(); err != nil {
		return 0, err
	}
	took := time.Since(began)
	time.Sleep(2 * time.Second) // what is given back is given back by then
	after, err := sw.(resident).resident()
	if err != nil {
		return 0, err
	}
	r.note("resident", "B", after.resident)
	r.note("resident before", "B", before.resident)
	r.note("huge pages beside", "B", after.huge)
	return took.Seconds(), nil
}

// measureAttack is the part of a pair's rate that a third guest leaves it, whose
// frames make as many masks as the rules permit (CVE-2019-25076).
func measureAttack(r *run, peer string, perSecond int) (float64, error) {
	s := attackRules()
	spec := guestsSpec{Warm: 2 * time.Second, Length: 4 * r.length, Attack: filepath.Join(r.dir, "attack"), PerSecond: perSecond}
	if err := writeTuples(spec.Attack, attackTuples()); err != nil {
		return 0, err
	}
	result, err := runPair(r, peer, s, spec, 1)
	if err != nil {
		return 0, err
	}
	r.note("alone", "frames/s", result.Frames)
	r.note("attacked", "frames/s", result.UnderFire)
	r.note("attack taken", "frames/s", result.AttackRate)
	return result.UnderFire / result.Frames, nil
}

// attackRules let 64 connections of the pair through, and give the third guest's
// port an access list that asks for both addresses and both ports.
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

// attackTuples differ from each of the four rules in a first bit each, in all
// combinations: each such frame needs another mask. What lies behind is random.
func attackTuples() []tuple {
	random := rand.New(rand.NewPCG(11, 1))
	differ := func(value uint32, width, at int) uint32 {
		rest := uint32(uint64(1)<<(width-1-at) - 1)
		return (value^1<<(width-1-at))&^rest | random.Uint32()&rest
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

// resident is a switch that tells how much memory it takes.
type resident interface {
	resident() (memory, error)
}

// memory is that of all of a switch's processes, in bytes: resident, and in huge
// pages, which do not count as resident.
type memory struct{ resident, huge float64 }

func (w *weft) resident() (memory, error) { return processMemory(w.daemon) }

func (o *ovs) resident() (memory, error) { return processMemory(o.vswitchd, o.db) }

// processMemory sums over processes and their children.
func processMemory(processes ...*process) (m memory, err error) {
	for _, p := range processes {
		for _, pid := range family(p.cmd.Process.Pid) {
			status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
			if err != nil {
				return m, err
			}
			m.resident += statusBytes(string(status), "VmRSS:")
			m.huge += statusBytes(string(status), "HugetlbPages:")
		}
	}
	return m, nil
}

// family is a process and all below it.
func family(pid int) []int {
	all := []int{pid}
	tasks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	for _, t := range tasks {
		text, _ := os.ReadFile(t)
		for _, word := range strings.Fields(string(text)) {
			if child, err := strconv.Atoi(word); err == nil {
				all = append(all, family(child)...)
			}
		}
	}
	return all
}

func statusBytes(status, field string) float64 {
	_, rest, _ := strings.Cut(status, field)
	words := strings.Fields(rest)
	if len(words) == 0 {
		return 0
	}
	kb, _ := strconv.ParseFloat(words[0], 64)
	return 1024 * kb
}

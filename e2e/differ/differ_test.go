// SPDX-License-Identifier: Apache-2.0

// Package differ compares weftd with a genuine ovs-vswitchd and its userspace data path. It draws
// pipelines and conversations, and plays them to both switches. It compares the flows as the
// switches show them, the frames that leave, the counters of flows and groups, and the connections.
//
//	go test ./e2e/differ -v -timeout 0 -first 1 -cases 1000
//
// plays the cases of the seeds 1 to 1000. Conversations and actions leave out the differences that
// docs/openflow.md lists. A case with a difference is shrunk: flows, matches,
// actions and steps are left out while the difference stays.
package differ

import (
	"bytes"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"weft/e2e/lab"
)

var (
	firstSeed = flag.Uint64("first", 1, "the first seed")
	caseCount = flag.Int("cases", 25, "how many seeds to play")
	maxFound  = flag.Int("differences", 3, "end after so many different cases")
)

func TestMain(m *testing.M) { lab.Main(m) }

// example is a test case: a pipeline of flows, and the conversations that are sent through it.
type example struct {
	seed uint64
	pipeline
	steps []step
}

func newExample(seed uint64) *example {
	r := rand.New(rand.NewPCG(seed, 33))
	e := &example{seed: seed, pipeline: newPipeline(r), steps: conversations(r)}
	if e.tracked {
		// After a ct action, Open vSwitch 3.1 forgets the translation of IPv6 fragments.
		e.steps = slices.DeleteFunc(e.steps, func(s step) bool { return len(s.frames) > 0 && s.text == "fragment" && isIPv6(s.frames[0]) })
	}
	if text := e.String(); strings.Contains(text, "push_vlan") {
		// Open vSwitch forgets the third tag of a frame.
		e.steps = slices.DeleteFunc(e.steps, func(s step) bool {
			return len(s.frames) > 0 && s.frames[0][12] == typeQinQ>>8 && s.frames[0][13] == typeQinQ&0xff
		})
	}
	return e
}

func (e *example) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "seed %d\n", e.seed)
	for _, g := range e.groups {
		fmt.Fprintln(&b, "group", g)
	}
	for i := range e.flows {
		fmt.Fprintln(&b, e.flows[i].String())
	}
	for i := range e.steps {
		fmt.Fprintf(&b, "%d (conversation %d): %s\n", i, e.steps[i].talk, e.steps[i].String())
	}
	return b.String()
}

// arena has the two switches, Open vSwitch and Weft, which get the same cases one after the
// other.
type arena struct {
	ovs         *ovs
	weft        *weft
	dir         string
	comparisons int
}

// play sends a case through both switches. It returns the first difference between them, or "".
//
// patience is the time to wait for more frames and counts while the switches differ.
func (a *arena) play(e *example, patience time.Duration) (string, error) {
	if err := a.program(e); err != nil {
		return "", err
	}
	if text, err := a.compareFlows(false); text != "" || err != nil {
		return text, err
	}
	last, answered := map[int]sent{}, map[int]bool{}
	for i := range e.steps {
		s := &e.steps[i]
		port, frames := s.port, s.frames
		if s.answer != nil {
			from, ok := last[s.talk]
			var f []byte
			if ok {
				f = s.answer(from.frame)
			}
			if answered[s.talk] = f != nil; f == nil {
				continue
			}
			port, frames = from.port, [][]byte{f}
		} else if s.follows {
			halfOpen, err := a.halfOpen()
			if err != nil {
				return "", err
			}
			if halfOpen || !answered[s.talk] {
				continue
			}
		}
		want, got, err := a.exchange(e, port, frames, patience)
		if err != nil {
			return "", err
		}
		a.comparisons += len(frames)
		if e.tracked && s.text == "fragment" { // in order of arrival or of the datagram
			sortFrames(want)
			sortFrames(got)
		}
		if text := differenceOfFrames(want, got); text != "" {
			return fmt.Sprintf("frames: step %d (%s), at port %d:\n%s%s", i, s.text, port, hexLines(frames), text), nil
		}
		if len(want) > 0 {
			last[s.talk] = want[len(want)-1]
		} else {
			delete(last, s.talk) // a frame that reached nobody has no answer
		}
	}
	for end := time.Now().Add(patience); ; time.Sleep(10 * time.Millisecond) {
		text, err := a.compareFlows(true)
		if text == "" && err == nil {
			text, err = a.compareConnections(e)
		}
		if text == "" || err != nil || time.Now().After(end) {
			return text, err
		}
	}
}

func hexLines(frames [][]byte) (text string) {
	for _, f := range frames {
		text += fmt.Sprintf("  %x\n", f)
	}
	return text
}

// exchange sends the frames to both switches. "want" has the frames that leave Open vSwitch,
// "got" those that leave Weft.
func (a *arena) exchange(e *example, port int, frames [][]byte, patience time.Duration) (want, got []sent, err error) {
	a.weft.rounds = 2
	if e.tracked {
		a.weft.rounds = 2 + tables
	}
	for _, f := range frames {
		if err := a.ovs.send(port, f); err != nil {
			return nil, nil, err
		}
		more, err := a.ovs.quiet(port)
		if err != nil {
			return nil, nil, err
		}
		want = append(want, more...)
		if err := a.weft.send(port, f); err != nil {
			return nil, nil, err
		}
		if more, err = a.weft.quiet(port); err != nil {
			return nil, nil, err
		}
		got = append(got, more...)
		if _, err := a.ovs.appctl("revalidator/purge"); err != nil {
			return nil, nil, err
		}
	}
	for end := time.Now().Add(patience); differenceOfFrames(want, got) != "" && time.Now().Before(end); {
		got = append(got, a.weft.afterwards(10*time.Millisecond)...)
		want = append(want, a.ovs.afterwards(0)...)
	}
	return want, got, nil
}

func sortFrames(list []sent) {
	slices.SortFunc(list, func(a, b sent) int { return bytes.Compare(a.frame, b.frame) })
}

// differenceOfFrames compares the frames that left each port, in order. It returns the first
// difference, or "".
func differenceOfFrames(want, got []sent) string {
	side := func(list []sent) (lines []string) {
		for _, s := range list {
			lines = append(lines, fmt.Sprintf("  port %d: %x", s.port, s.frame))
		}
		slices.SortStableFunc(lines, func(a, b string) int { return strings.Compare(a[:9], b[:9]) })
		return lines
	}
	return difference(side(want), side(got))
}

func difference(want, got []string) string {
	if slices.Equal(want, got) {
		return ""
	}
	var b strings.Builder
	list := func(title string, lines, compared []string, missing string) {
		fmt.Fprintln(&b, title)
		for _, l := range lines {
			mark := " "
			if !slices.Contains(compared, l) {
				mark = missing
			}
			fmt.Fprintln(&b, mark, l)
		}
	}
	list("Open vSwitch:", want, got, "-")
	list("Weft:", got, want, "+")
	return b.String()
}

const version = "OpenFlow15"

// program replaces the flows and groups of both switches by the case's pipeline.
func (a *arena) program(e *example) error {
	var flows strings.Builder
	flows.WriteString(markerFlows)
	for i := range e.flows {
		fmt.Fprintln(&flows, e.flows[i].String())
	}
	flowFile, groupFile := a.dir+"/flows", a.dir+"/groups"
	if err := os.WriteFile(flowFile, []byte(flows.String()), 0o600); err != nil {
		return err
	}
	if err := os.WriteFile(groupFile, []byte(strings.Join(e.groups, "\n")+"\n"), 0o600); err != nil {
		return err
	}
	for _, p := range []*pipe{&a.ovs.pipe, &a.weft.pipe} {
		for _, words := range [][]string{{"del-flows"}, {"del-groups"}, {"add-groups", groupFile}, {"add-flows", flowFile}} {
			if _, err := p.ofctl(version, words[0], words[1:]...); err != nil {
				return err
			}
		}
	}
	for _, command := range []string{"dpctl/flush-conntrack", "fdb/flush", "revalidator/purge"} {
		if _, err := a.ovs.appctl(command); err != nil {
			return err
		}
	}
	a.weft.daemon.Weft("flush-conntrack")
	return nil
}

var passing = regexp.MustCompile(`\b(duration|idle_age|hard_age)=[0-9.]+s?,? ?|^OFPST_.*`)

var counters = regexp.MustCompile(`\bn_(packets|bytes)=\d+, `)

// flowsOf returns the lines of a dump of flows without times and without the flows of markers.
// If counted is false, the lines have no counts.
func flowsOf(text string, counted bool) (lines []string) {
	for _, l := range strings.Split(text, "\n") {
		l = strings.TrimSpace(passing.ReplaceAllString(l, ""))
		if !counted {
			l = counters.ReplaceAllString(l, "")
		}
		if l != "" && !strings.Contains(l, "dl_type=0x88b5") {
			lines = append(lines, l)
		}
	}
	slices.Sort(lines)
	return lines
}

// compareFlows compares the dumps of flows and groups of both switches. If counted is false, it
// ignores the counts.
func (a *arena) compareFlows(counted bool) (string, error) {
	verbs := []string{"dump-flows"}
	if counted {
		verbs = append(verbs, "dump-group-stats")
	} else {
		verbs = append(verbs, "dump-groups")
	}
	for _, verb := range verbs {
		want, err := a.ovs.ofctl(version, verb)
		if err != nil {
			return "", err
		}
		got, err := a.weft.ofctl(version, verb)
		if err != nil {
			return "", err
		}
		a.comparisons++
		if text := difference(flowsOf(want, counted), flowsOf(got, counted)); text != "" {
			what := "dump"
			if counted {
				what = "counters"
			}
			return what + ": " + verb + ":\n" + text, nil
		}
	}
	return "", nil
}

// halfOpen reports whether Open vSwitch tracks a TCP connection that has no answer yet.
func (a *arena) halfOpen() (bool, error) {
	text, err := a.ovs.appctl("dpctl/dump-conntrack")
	return strings.Contains(text, "state=SYN_SENT"), err
}

// compareConnections compares the dumps of tracked connections of both switches.
func (a *arena) compareConnections(e *example) (string, error) {
	if !e.tracked {
		return "", nil
	}
	want, err := a.ovs.appctl("dpctl/dump-conntrack")
	if err != nil {
		return "", err
	}
	got := a.weft.daemon.Weft("dump-conntrack")
	a.comparisons++
	lines := func(text string) []string {
		l := strings.Split(strings.TrimSpace(text), "\n")
		slices.Sort(l)
		return l
	}
	if text := difference(lines(want), lines(got)); text != "" {
		return "connections:\n" + text, nil
	}
	return "", nil
}

// shrink removes parts of the case as long as a difference of the same kind stays. It returns
// the smaller case and its difference.
func (a *arena) shrink(t *testing.T, e *example, text string) (*example, string) {
	kind, _, _ := strings.Cut(text, ":")
	try := func(smaller *example) bool {
		got, err := a.play(smaller, 30*time.Millisecond)
		if err != nil || !strings.HasPrefix(got, kind+":") {
			return false
		}
		e, text = smaller, got
		return true
	}
	for size := max(len(e.flows), len(e.steps)) / 2; size > 1; size /= 2 {
		for i := len(e.steps) - size; i >= 0; i -= size {
			c := *e
			c.steps = slices.Delete(slices.Clone(e.steps), i, i+size)
			try(&c)
		}
		for i := len(e.flows) - size; i >= 0; i -= size {
			c := *e
			c.flows = slices.Delete(slices.Clone(e.flows), i, i+size)
			try(&c)
		}
	}
	for smaller := true; smaller; {
		smaller = false
		for i := len(e.steps) - 1; i >= 0; i-- {
			c := *e
			c.steps = slices.Delete(slices.Clone(e.steps), i, i+1)
			smaller = try(&c) || smaller
		}
		for i := len(e.flows) - 1; i >= 0; i-- {
			c := *e
			c.flows = slices.Delete(slices.Clone(e.flows), i, i+1)
			if smaller = try(&c) || smaller; len(c.flows) == len(e.flows) {
				continue
			}
			for k := len(e.flows[i].actions) - 1; k >= 0; k-- {
				c := *e
				c.flows = slices.Clone(e.flows)
				c.flows[i].actions = slices.Delete(slices.Clone(c.flows[i].actions), k, k+1)
				smaller = try(&c) || smaller
			}
			for k := len(e.flows[i].match) - 1; k >= 0; k-- {
				c := *e
				c.flows = slices.Clone(e.flows)
				c.flows[i].match = slices.Delete(slices.Clone(c.flows[i].match), k, k+1)
				smaller = try(&c) || smaller
			}
		}
	}
	return e, text
}

func TestDiffer(t *testing.T) {
	for _, name := range []string{"ovs-vswitchd", "ovsdb-server", "ovsdb-tool", "ovs-vsctl", "ovs-ofctl"} {
		if _, err := exec.LookPath(name); err != nil {
			t.Skip(name + " is missing: install openvswitch-switch")
		}
	}
	if os.Geteuid() != 0 {
		t.Skip("end-to-end tests need root")
	}
	l := lab.New(t)
	t.Cleanup(l.Close)
	o, err := newOVS(l)
	if err != nil {
		t.Fatal(err)
	}
	w, err := newWeft(l)
	if err != nil {
		t.Fatal(err)
	}
	a := &arena{ovs: o, weft: w, dir: l.Dir}
	found, began := 0, time.Now()
	for seed := *firstSeed; seed < *firstSeed+uint64(*caseCount) && found < *maxFound; seed++ {
		e := newExample(seed)
		text, err := a.play(e, 0)
		for range 2 { // on a busy machine a frame may come late
			if text != "" && err == nil {
				text, err = a.play(e, 20*time.Second)
			}
		}
		if err != nil {
			t.Errorf("seed %d: %v\n%s", seed, err, e)
			found++
			continue
		}
		if text != "" {
			small, text := a.shrink(t, e, text)
			t.Errorf("%s\n%s", text, small)
			found++
		}
	}
	t.Logf("%d comparisons in %v", a.comparisons, time.Since(began).Round(time.Second))
}

// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"weft/e2e/lab"
)

// The files testdata/ovs/*.play are recordings of Open vSwitch. weft must give the
// same answers.
//
// A line with $ is a command, without the bridge's name. Its answer follows, or
// "refused". A line with < is text of the command's file. "# differs: REASON" before
// a command allows another answer of weft, after "weft:".
//
// To record again, use a bridge br0 with datapath_type=dummy, dummy ports 1 to 4 and
// no controller:
//
//	go test ./e2e -run TestAsOVS -record-ovs unix:DIR/br0.mgmt
var recordOVS = flag.String("record-ovs", "", "record what the switch of this connection answers")

// play is one recording of commands and answers.
type play struct {
	file    string
	version string // OpenFlow version
	steps   []playStep
}

type playStep struct {
	comments     []string
	command      string
	input        []string
	answer, weft []string
	hasWeft      bool
}

func TestAsOVS(t *testing.T) {
	l := newLab(t)
	files, err := filepath.Glob("testdata/ovs/*.play")
	if err != nil || len(files) == 0 {
		t.Fatalf("no recordings: %v", err)
	}
	d := l.Host("host").Weftd()
	for i := range 4 {
		d.Tap(l.Host(fmt.Sprint("p", i+1)), fmt.Sprintf("02:00:00:00:00:%02x", i+1), "", guestMTU)
	}
	commands := 0
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".play"), func(t *testing.T) {
			p := readPlay(t, file)
			commands += len(p.steps)
			if *recordOVS != "" {
				p.record(t)
			}
			for _, clear := range []string{"del-flows", "del-groups", "del-meters"} {
				d.Weft(clear)
			}
			p.run(t, d)
			if *recordOVS != "" {
				p.write(t)
			}
		})
	}
	t.Logf("%d commands", commands)
}

func readPlay(t *testing.T, file string) *play {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	p := &play{file: file, version: "OpenFlow10"}
	var step playStep
	begun := false
	end := func() {
		if begun {
			p.steps = append(p.steps, step)
			step, begun = playStep{}, false
		}
	}
	for _, line := range strings.Split(strings.TrimRight(string(text), "\n"), "\n") {
		switch {
		case strings.HasPrefix(line, "# OpenFlow"):
			p.version = line[2:]
		case strings.HasPrefix(line, "#"):
			end()
			step.comments = append(step.comments, line)
		case strings.HasPrefix(line, "$ "):
			end()
			begun, step.command = true, line[2:]
		case strings.HasPrefix(line, "< "):
			step.input = append(step.input, line[2:])
		case line == "weft:":
			step.hasWeft = true
		case line == "":
		case step.hasWeft:
			step.weft = append(step.weft, line)
		default:
			step.answer = append(step.answer, line)
		}
	}
	end()
	return p
}

func (s *playStep) words() (words []string) {
	for i, part := range strings.Split(s.command, "'") {
		if i%2 == 1 {
			words = append(words, part)
		} else {
			words = append(words, strings.Fields(part)...)
		}
	}
	return words
}

func (p *play) run(t *testing.T, d *lab.Daemon) {
	for i := range p.steps {
		s := &p.steps[i]
		words := s.words()
		if s.input != nil {
			words = append(words, writeInput(t, s.input))
		}
		verb := words[0]
		if slices.Contains([]string{"dump-flows", "dump-groups", "diff-flows", "trace"}, verb) {
			words = append([]string{"--no-names"}, words...)
		}
		out, stderr, code := d.TryWeft(words...)
		got := normalized(out, code != 0 && !(verb == "diff-flows" && code == 2))
		if verb == "trace" {
			got = traced(out)
			s.compareTraces(t, got)
		}
		want := s.answer
		if s.hasWeft {
			want = s.weft
		}
		if *recordOVS != "" {
			if s.weft, s.hasWeft = got, !slices.Equal(got, s.answer); s.hasWeft {
				t.Logf("%s: weft %s\n%s%s\n%s", p.file, s.command, strings.Join(got, "\n"), stderr, "of OVS:\n"+strings.Join(s.answer, "\n"))
			}
		} else if !slices.Equal(got, want) {
			t.Errorf("weft %s: %s\n%s\nwant\n%s", s.command, stderr, strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
	}
}

func writeInput(t *testing.T, lines []string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "input")
	if err := os.WriteFile(file, []byte(strings.Join(lines, "\n")+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

var (
	passing = regexp.MustCompile(`\b(duration|idle_age|hard_age)[=:][0-9.]+s?,? ?`)
	header  = regexp.MustCompile(`^(NXST_|OFPST_|OFPT_)\w+ reply( \(\w+\.\w+\))? \(xid=\w+\):`)
)

func normalized(text string, failed bool) []string {
	if failed {
		return []string{"refused"}
	}
	lines := []string{}
	for _, line := range strings.Split(text, "\n") {
		line = header.ReplaceAllString(line, "")
		if line = strings.TrimSpace(passing.ReplaceAllString(line, "")); line != "" {
			lines = append(lines, line)
		}
	}
	slices.Sort(lines)
	return lines
}

// The traces of both switches must send the frame to the same ports in the same order.
// The megaflows must have the same fields, unless a comment "# megaflow" gives a
// reason.

func traced(text string) (lines []string) {
	for _, line := range strings.Split(text, "\n") {
		if strings.HasPrefix(line, "Megaflow:") || strings.HasPrefix(line, "Datapath actions:") {
			lines = append(lines, line)
		}
	}
	return lines
}

var (
	bracketed = regexp.MustCompile(`\([^()]*\)`)
	portWord  = regexp.MustCompile(`^\d+$`)
)

// localPort is the number of the bridge's own interface in the recordings. Weft has no
// such port.
const localPort = "100"

// sentTo returns the output ports in the datapath actions of a trace.
func sentTo(lines []string) (ports []string) {
	_, actions, _ := strings.Cut(lines[len(lines)-1], ": ")
	for bracketed.MatchString(actions) {
		actions = bracketed.ReplaceAllString(actions, "")
	}
	for _, word := range strings.Split(actions, ",") {
		if portWord.MatchString(word) && word != localPort {
			ports = append(ports, word)
		}
	}
	return ports
}

// lookedAt returns the fields of the megaflow in a trace, except those that Open
// vSwitch always has.
func lookedAt(lines []string) (fields []string) {
	_, megaflow, _ := strings.Cut(lines[0], ": ")
	for _, field := range strings.Split(megaflow, ",") {
		if !slices.Contains([]string{"recirc_id=0", "eth", "nw_frag=no"}, field) {
			fields = append(fields, field)
		}
	}
	slices.Sort(fields)
	return fields
}

func (s *playStep) hasComment(word string) bool {
	return slices.ContainsFunc(s.comments, func(c string) bool { return strings.HasPrefix(c, word) })
}

func (s *playStep) compareTraces(t *testing.T, got []string) {
	t.Helper()
	if len(got) != 2 || len(s.answer) != 2 {
		t.Fatalf("weft %s: %q beside %q", s.command, got, s.answer)
	}
	ours, theirs := sentTo(got), sentTo(s.answer)
	if s.hasComment("# order") { // flooded ports have no defined order
		slices.Sort(theirs)
	}
	if !slices.Equal(ours, theirs) {
		t.Errorf("weft %s sends to %v, want %v", s.command, ours, theirs)
	}
	explained := s.hasComment("# megaflow")
	if ours, theirs := lookedAt(got), lookedAt(s.answer); slices.Equal(ours, theirs) == explained {
		t.Errorf("weft %s: megaflow of %v beside %v, explained: %t", s.command, ours, theirs, explained)
	}
}

// Recording.

func (p *play) record(t *testing.T) {
	for _, clear := range []string{"del-flows", "del-groups", "del-meters"} {
		if out, err := p.ofctl(clear); err != nil && !(p.version == "OpenFlow10" && clear != "del-flows") {
			t.Fatalf("ovs-ofctl %s: %v: %s", clear, err, out)
		}
	}
	for i := range p.steps {
		s := &p.steps[i]
		words := s.words()
		if s.input != nil {
			words = append(words, writeInput(t, s.input))
		}
		out, err := p.ofctl(words...)
		if err != nil && slices.Contains(words, "diff-flows") && out != "" {
			err = nil
		}
		s.answer, s.weft, s.hasWeft = normalized(out, err != nil), nil, false
		if words[0] == "trace" {
			s.answer = traced(out)
		}
	}
}

// ofctl runs ovs-ofctl with the given words. It inserts the bridge's name after the
// first word.
func (p *play) ofctl(words ...string) (string, error) { return p.ofctlAt(*recordOVS, words...) }

// ofctlAt runs ovs-ofctl like ofctl, but for the switch with the connection target, such as
// unix:PATH.
func (p *play) ofctlAt(target string, words ...string) (string, error) {
	at := slices.IndexFunc(words, func(w string) bool { return !strings.HasPrefix(w, "-") })
	args := append([]string{"--no-names", "-O", p.version}, words[:at+1]...)
	args = append(append(args, target), words[at+1:]...)
	cmd := exec.Command("ovs-ofctl", args...)
	if words[0] == "trace" {
		dir := filepath.Dir(strings.TrimPrefix(*recordOVS, "unix:"))
		cmd = exec.Command("ovs-appctl", "-t", filepath.Join(dir, "ctl"), "ofproto/trace", "br0", words[1])
	}
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	if err == nil && strings.Contains(errs.String(), "OFPT_ERROR") {
		err = fmt.Errorf("%s", errs.String())
	}
	return out.String(), err
}

func (p *play) write(t *testing.T) {
	var b strings.Builder
	if p.version != "OpenFlow10" {
		fmt.Fprintf(&b, "# %s\n", p.version)
	}
	put := func(prefix string, lines []string) {
		for _, line := range lines {
			fmt.Fprintln(&b, prefix+line)
		}
	}
	for i := range p.steps {
		s := &p.steps[i]
		put("", s.comments)
		fmt.Fprintln(&b, "$ "+s.command)
		put("< ", s.input)
		put("", s.answer)
		if s.hasWeft {
			fmt.Fprintln(&b, "weft:")
			put("", s.weft)
		}
	}
	if err := os.WriteFile(p.file, []byte(b.String()), 0o644); err != nil {
		t.Fatal(err)
	}
}

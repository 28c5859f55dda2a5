// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// ovs-ofctl itself, connected to Weft by OpenFlow, gets the answers that it got from a
// switch of Open vSwitch. The commands are those of TestAsOVS, except for traces.
func TestOfctlOverTheWire(t *testing.T) {
	if _, err := exec.LookPath("ovs-ofctl"); err != nil {
		t.Skip("ovs-ofctl is missing: install openvswitch-common")
	}
	l := newLab(t)
	d := l.Host("host").Weftd()
	for i := range 4 {
		d.Tap(l.Host(fmt.Sprint("p", i+1)), fmt.Sprintf("02:00:00:00:00:%02x", i+1), "", guestMTU)
	}
	files, err := filepath.Glob("testdata/ovs/*.play")
	if err != nil || len(files) == 0 {
		t.Fatalf("no recordings: %v", err)
	}
	target := "unix:" + strings.TrimSuffix(d.Socket, ".sock") + ".mgmt"
	commands := 0
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".play"), func(t *testing.T) {
			p := readPlay(t, file)
			for _, clear := range []string{"del-flows", "del-groups", "del-meters"} {
				d.Weft(clear)
			}
			for i := range p.steps {
				if p.replay(t, target, &p.steps[i]) {
					commands++
				}
			}
		})
	}
	t.Logf("%d commands", commands)
}

// replay runs one command of a recording with ovs-ofctl and compares the answer. It
// reports whether ovs-ofctl has the command.
func (p *play) replay(t *testing.T, target string, s *playStep) bool {
	words := s.words()
	if words[0] == "trace" {
		return false
	}
	if s.input != nil {
		words = append(words, writeInput(t, s.input))
	}
	out, err := p.ofctlAt(target, words...)
	if err != nil && slices.Contains(words, "diff-flows") && out != "" {
		err = nil
	}
	got, want := strings.Join(normalized(out, err != nil), "\n"), strings.Join(s.answer, "\n")
	if s.says("# differs: check_overlap") {
		want = strings.ReplaceAll(want, "check_overlap ", "")
	}
	if got != want {
		t.Errorf("ovs-ofctl -O %s %s: %v\n%s\nwant\n%s", p.version, s.command, err, got, want)
	}
	return true
}

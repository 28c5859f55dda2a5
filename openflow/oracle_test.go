// SPDX-License-Identifier: Apache-2.0

package openflow

import (
	"bytes"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"weft/openflow/openflowtest"
)

// strictAbout matches errors of ovs-ofctl's decoder that OpenFlow 1.5 demands and OpenFlow 1.0 does not. The
// tests ignore them.
var strictAbout = regexp.MustCompile(`decode error: (OFPBAC_MATCH_INCONSISTENT|OFPBAC_BAD_SET_ARGUMENT|OFPBMC_BAD_PREREQ)`)

// oracle runs ovs-ofctl parse-flows on the lines. It returns the output, and whether
// ovs-ofctl accepts all lines. A line also counts as refused if ovs-ofctl cannot decode
// its own message.
func oracle(t *testing.T, lines ...string) (ok bool, answer string) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "flows")
	if err := os.WriteFile(file, []byte(strings.Join(lines, "\n")+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	text := strings.Join(lines, " ")
	sets := strings.Contains(text, "write_actions") || strings.Contains(text, "clear_actions")
	for i, opts := range [][]string{{}, {"-O", "OpenFlow15"}, {"-O", "OpenFlow11"}} {
		cmd := exec.Command("ovs-ofctl", append(opts, "parse-flows", file)...)
		var stdout, stderr bytes.Buffer
		cmd.Stdout, cmd.Stderr = &stdout, &stderr
		err := cmd.Run()
		answer += stdout.String() + stderr.String()
		undecoded := strings.Contains(stdout.String(), "decode error")
		switch {
		case sets && i == 0 && err == nil && undecoded:
			return false, answer
		case sets && i == 0 && err == nil: // in OpenFlow 1.0, ovs-ofctl leaves out the action set
		case err == nil && (!undecoded || sets && strictAbout.MatchString(stdout.String())):
			return true, answer
		case err != nil && !strings.Contains(stderr.String(), "no usable protocol"):
			return false, answer
		case i == 1 && !sets: // OpenFlow 1.1 is tried for action sets only, whose VLAN IDs lack OFPVID_PRESENT there
			return false, answer
		}
		// No single OpenFlow version can carry every valid flow.
	}
	return false, answer
}

func needOracle(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("starts ovs-ofctl thousands of times: runs without -short")
	}
	if _, err := exec.LookPath("ovs-ofctl"); err != nil {
		t.Skip("ovs-ofctl is missing: install openvswitch-common for the comparison with it")
	}
}

// beyond reports whether the error names a word of ovs-fields(7) or ovs-actions(7) that
// Weft does not support. The tests do not compare such texts.
func beyond(err error) bool {
	return err != nil && strings.Contains(err.Error(), "weft")
}

func corpus(t *testing.T) []string { return corpusOf(t) }

func corpusOf(t testing.TB) []string {
	t.Helper()
	b, err := os.ReadFile("testdata/flows.txt")
	if err != nil {
		t.Fatal(err)
	}
	return strings.Split(strings.TrimSpace(string(b)), "\n")
}

// deviations has the texts that Weft treats differently from ovs-ofctl on purpose, each with the difference.
var deviations = map[string]string{
	"arp,arp_op=256,actions=drop":                "the oracle matches arp_op=0",
	"dl_vlan=4096,actions=drop":                  "the oracle matches VLAN 0",
	"ip,ipv6_label=1,actions=drop":               "the oracle forgets to normalize the label",
	"actions=goto_table:255":                     "there is no table 255",
	"ip,ct_state=+snat,ct_tp_src=6,actions=drop": "the oracle does not show ct_tp_src here",
	"packet_type=(1,0x800),actions=drop":         "no frame of Weft has this type",
	"actions=set_field:*->reg0":                  "an action without effect",
}

// lowByte matches addresses with an invalid byte. ovs-ofctl uses the low 8 bits of such
// a byte; Weft refuses it.
var lowByte = regexp.MustCompile(`[:=/.](-|\+|0x|0*[1-9a-f][0-9a-f]{2})`)

// sloppyFlags matches tcp_flags with text after the number, which ovs-ofctl ignores
// and Weft refuses.
var sloppyFlags = regexp.MustCompile(`tcp_flags=([a-z+|-]*[+|-])?[0-9]+[a-z+|-]`)

// openTable matches table names with an unclosed quote, which ovs-ofctl reads as
// table 0.
var openTable = regexp.MustCompile(`table="|resubmit\([^)]*"`)

// TestAcceptsWhatOVSAccepts compares each text with ovs-ofctl parse-flows.
func TestAcceptsWhatOVSAccepts(t *testing.T) {
	needOracle(t)
	compareWithOracle(t, corpus(t))
}

// compareWithOracle fails the test unless ovs-ofctl and Weft accept the same texts and refuse the same texts.
func compareWithOracle(t *testing.T, texts []string) {
	t.Helper()
	var wg sync.WaitGroup
	slots := make(chan struct{}, 3)
	for _, text := range texts {
		_, err := ParseFlowMod(text, Add, WithTLVs(nil, testTLVs))
		if beyond(err) || deviations[text] != "" {
			continue
		}
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			ok, out := oracle(t, text)
			if strings.Contains(out, "UNSUPPORTED_ORDER") || strings.Contains(out, "BAD_WILDCARDS") {
				// In some versions of OpenFlow, a message cannot have write_metadata before goto_table, or
				// bits of a value that its mask does not have.
				return
			}
			if ok && err != nil && lowByte.MatchString(text) && strings.Contains(err.Error(), "address as") {
				return
			}
			if ok && err != nil && sloppyFlags.MatchString(text) && strings.Contains(err.Error(), "TCP flags") {
				return
			}
			if ok && err != nil && openTable.MatchString(text) && regexp.MustCompile("table number|PORT,TABLE").MatchString(err.Error()) {
				return
			}
			if ok != (err == nil) {
				t.Errorf("%s\n  weft: %v\n  ovs-ofctl: %v: %s", text, err, ok, out)
			}
		})
	}
	wg.Wait()
}

// TestMatchTextIsOVSs compares the text of matches with ovs-ofctl's output.
func TestMatchTextIsOVSs(t *testing.T) {
	needOracle(t)
	var texts, ours []string
	for _, text := range corpus(t) {
		mod, err := ParseFlowMod(text, Add, WithTLVs(nil, testTLVs))
		if err != nil || deviations[text] != "" {
			continue
		}
		match, _, found := strings.Cut(text, "action")
		if !found || strings.Contains(text, "importance") || strings.Contains(text, "nw_frag=later,tp") {
			continue
		}
		texts = append(texts, strings.TrimRight(match, " ,")+" actions=drop")
		ours = append(ours, string(AppendPriority(nil, mod.Priority, mod.Match, WithTLVs(nil, testTLVs))))
	}
	compareShown(t, texts, ours)
}

// compareShown fails the test unless ovs-ofctl shows the matches of texts as Weft does. "ours" has the texts
// that Weft shows.
func compareShown(t *testing.T, texts, ours []string) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "flows")
	if err := os.WriteFile(file, []byte(strings.Join(texts, "\n")+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command("ovs-ofctl", "-F", "nxm", "parse-flows", file).Output()
	if err != nil {
		t.Fatalf("%v: %s", err, err.(*exec.ExitError).Stderr)
	}
	n := 0
	for _, line := range strings.Split(string(out), "\n") {
		_, shown, ok := strings.Cut(line, " ADD ")
		if !ok {
			continue
		}
		var words []string
		for _, w := range strings.Fields(shown) {
			if word, _, setting := strings.Cut(w, ":"); !(setting && strings.Trim(word, "abcdefghijklmnopqrstuvwxyz") == "") &&
				w != "send_flow_rem" && w != "check_overlap" && w != "reset_counts" && w != "actions=drop" {
				words = append(words, w)
			}
		}
		if got, want := ours[n], strings.Join(words, " "); got != want {
			t.Errorf("%s\n  weft:      %s\n  ovs-ofctl: %s", texts[n], got, want)
		}
		n++
	}
	if n != len(texts) {
		t.Errorf("ovs-ofctl shows %d of %d flows", n, len(texts))
	}
}

// notCompared lists the fields of OpenFlow 1.3 that ovs-ofctl does not know. OpenFlow allows masks for both,
// and has no action that writes ipv6_exthdr.
var notCompared = []string{"pbb_isid", "ipv6_exthdr"}

func namesUncompared(text string) bool {
	return slices.ContainsFunc(notCompared, func(name string) bool { return strings.Contains(text, name) })
}

// TestGeneratedTextIsOVSs compares Weft and ovs-ofctl on generated texts, some with
// one wrong character.
func TestGeneratedTextIsOVSs(t *testing.T) {
	needOracle(t)
	generateForOracle(t, 7)
}

func generateForOracle(t *testing.T, seed uint64) {
	t.Helper()
	r := rand.New(rand.NewPCG(seed, 7))
	var matches, shown, spoilt []string
	for len(matches) < 400 {
		match := openflowtest.MatchText(r)
		if namesUncompared(match) {
			continue
		}
		mod, err := ParseFlowMod(match+" actions=drop", Add, WithTLVs(nil, testTLVs))
		if err != nil {
			t.Fatalf("%s: %v", match, err)
		}
		matches = append(matches, match+" actions=drop")
		shown = append(shown, string(AppendPriority(nil, mod.Priority, mod.Match, WithTLVs(nil, testTLVs))))
	}
	compareShown(t, matches, shown)
	const characters = "0123456789abcdefx/.:,=()[]+->* \"_"
	for len(spoilt) < 300 {
		text := openflowtest.FlowText(r)
		if namesUncompared(text) {
			continue
		}
		b := []byte(text)
		at := r.IntN(len(b))
		switch r.IntN(3) {
		case 0:
			b[at] = characters[r.IntN(len(characters))]
		case 1:
			b = append(b[:at], b[at+1:]...)
		case 2:
			b = append(b[:at], append([]byte{characters[r.IntN(len(characters))]}, b[at:]...)...)
		}
		spoilt = append(spoilt, string(b))
	}
	compareWithOracle(t, spoilt)
}

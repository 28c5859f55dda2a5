// SPDX-License-Identifier: Apache-2.0

package ofp

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	of "weft/openflow"
	"weft/openflow/ofp/ofptest"
)

var allVersions = []Version{v10, v13, v14, v15}

func corpus(t testing.TB) (mods []of.FlowMod, lines []string) {
	t.Helper()
	b, err := os.ReadFile("../testdata/flows.txt")
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range strings.Split(strings.TrimSpace(string(b)), "\n") {
		if mod, err := of.ParseFlowMod(line, of.Add, nil); err == nil {
			mods, lines = append(mods, mod), append(lines, line)
		}
	}
	return mods, lines
}

// printed returns the text that ovs-ofctl prints for messages, with one line for each
// message.
func printed(t *testing.T, messages ...[]byte) []string {
	t.Helper()
	tool, err := exec.LookPath("ovs-ofctl")
	if err != nil {
		t.Skip("ovs-ofctl is missing: install openvswitch-common for the comparison with it")
	}
	file := filepath.Join(t.TempDir(), "messages")
	if err := os.WriteFile(file, bytes.Join(messages, nil), 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command(tool, "ofp-parse", file).Output()
	if err != nil {
		t.Fatalf("ovs-ofctl ofp-parse: %v\n%s", err, out)
	}
	var texts []string
	for _, line := range strings.Split(strings.TrimSpace(string(out)), "\n") {
		if begins.MatchString(line) {
			texts = append(texts, line)
		} else if n := len(texts); n > 0 {
			texts[n-1] += "\n" + line
		}
	}
	return texts
}

// begins matches the first line of each message in the output of ovs-ofctl.
var begins = regexp.MustCompile(`^(OFP|NX|ONF|\*\*\*|.*decode error)`)

// The test encodes each flow of the corpus as a flow_mod. ovs-ofctl and Weft must
// decode it equally.
// The description of a port has its address, features and speed where each version has them.
func TestPortDescription(t *testing.T) {
	p := Port{No: 3, Name: "p3", MAC: 0x020000000003, Features: SpeedFeature(50_000, true) | FeatureCopper | FeatureAutoneg, Speed: 50_000_000}
	for _, c := range []struct {
		v             Version
		features, mac int // offsets
		wantFeatures  uint32
		speed, length int // offset; 0: the version has no speed
	}{
		{v10, 32, 2, 1<<7 | 1<<9, 0, 48},
		{v13, 40, 8, 1<<10 | 1<<11 | 1<<13, 56, 64},
		{v15, 48, 8, 1<<10 | 1<<11 | 1<<13, 64, 72},
	} {
		b := AppendPort(nil, c.v, &p)
		if got := be.Uint32(b[c.features:]); got != c.wantFeatures {
			t.Errorf("version %d: features %#x, want %#x", c.v, got, c.wantFeatures)
		}
		if len(b) != c.length || b[c.mac] != 2 || b[c.mac+5] != 3 {
			t.Errorf("version %d: %d bytes, want %d: % x", c.v, len(b), c.length, b)
		}
		if c.speed != 0 && be.Uint32(b[c.speed:]) != p.Speed {
			t.Errorf("version %d: % x has no speed at %d", c.v, b, c.speed)
		}
	}
	for mbps, want := range map[uint32][2]uint32{0: {}, 10: {Feature10MbHD, Feature10MbFD}, 100: {Feature100MbHD, Feature100MbFD}, 1000: {Feature1GbHD, Feature1GbFD},
		10_000: {Feature10GbFD, Feature10GbFD}, 25_000: {FeatureOther, FeatureOther}, 40_000: {Feature40GbFD, Feature40GbFD}, 100_000: {Feature100GbFD, Feature100GbFD}} {
		if got := [2]uint32{SpeedFeature(mbps, false), SpeedFeature(mbps, true)}; got != want {
			t.Errorf("%d Mbit/s: features %#x, want %#x", mbps, got, want)
		}
	}
}

func TestFlowModIsOVSs(t *testing.T) {
	mods, lines := corpus(t)
	for _, v := range allVersions {
		var messages [][]byte
		var texts, from []string
		for i := range mods {
			m := ofptest.FlowMod(v, uint32(i+1), &mods[i])
			r, err := Identify(m)
			if err != nil {
				t.Fatal(err)
			}
			back, err := DecodeFlowMod(&r, true)
			if err != nil {
				// the version cannot express this flow; TestWireRoundTrip checks that
				// this is the only reason
				continue
			}
			messages, from = append(messages, m), append(from, lines[i])
			texts = append(texts, of.FormatDiff(&back, nil))
		}
		compare(t, v, printed(t, messages...), texts, from)
	}
}

// words replaces spellings that differ between versions in the output of ovs-ofctl.
var words = strings.NewReplacer("pop_vlan", "strip_vlan", "0x0005->vlan_tci", "0x5->vlan_tci", "0x00003->ipv6_label", "0x3->ipv6_label",
	"0x0001/0x0fff->vlan_tci", "0x1/0xfff->vlan_tci", "4097/0x1001->vlan_vid", "0x1001/0x1001->vlan_vid")

// deviations has flows that the test does not compare: ovs-ofctl encodes them, but then refuses
// its own message, or prints it without a part.
var deviations = map[string]string{
	"tcp6,actions=write_actions(set_field:1->in_port_oxm)": "ovs-ofctl sets no in_port in an action set",
	"ct_state=+est+trk,actions=resubmit(1,,ct)":            "ovs-ofctl prints resubmit:1 if there is no table, with and without ct",
}

func compare(t *testing.T, v Version, got, texts, lines []string) {
	t.Helper()
	if len(got) != len(texts) {
		t.Fatalf("version %d: %d lines for %d messages:\n%s", v, len(got), len(texts), strings.Join(got[:min(3, len(got))], "\n"))
	}
	bad := 0
	for i := range got {
		_, actions, _ := strings.Cut(got[i], "actions=")
		_, want, _ := strings.Cut(texts[i], "actions=")
		if deviations[lines[i]] != "" {
			continue
		}
		if words.Replace(actions) != words.Replace(want) || strings.Contains(got[i], "decode error") || strings.Contains(got[i], "***") {
			if bad++; bad < 25 {
				t.Errorf("version %d: %s\n got %s\nwant %s", v, lines[i], got[i], texts[i])
			}
		}
	}
	t.Logf("version %d: %d flows", v, len(got))
}

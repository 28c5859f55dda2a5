// SPDX-License-Identifier: Apache-2.0

package privilege

import (
	"errors"
	"os"
	"slices"
	"strings"
	"testing"

	"kernel.org/pub/linux/libs/security/libcap/cap"
)

func TestParse(t *testing.T) {
	list, err := Parse("net_admin,CAP_NET_RAW,cap_bpf")
	if want := []cap.Value{cap.NET_ADMIN, cap.NET_RAW, cap.BPF}; err != nil || !slices.Equal(list, want) {
		t.Errorf("%v, %v, want %v", list, err, want)
	}
	for _, text := range []string{"net_admin,", "root", "net_admin net_raw"} {
		if list, err := Parse(text); err == nil {
			t.Errorf("%q: %v, want an error", text, list)
		}
	}
}

// The unit in the packages grants exactly the capabilities that ports need. docs/uplinks.md names each
// capability.
func TestPackagedUnit(t *testing.T) {
	unit, err := os.ReadFile("../../packaging/weftd.service")
	if err != nil {
		t.Fatal(err)
	}
	document, err := os.ReadFile("../../docs/uplinks.md")
	if err != nil {
		t.Fatal(err)
	}
	needed := Names(All())
	slices.Sort(needed)
	for _, key := range []string{"AmbientCapabilities=", "CapabilityBoundingSet="} {
		_, rest, _ := strings.Cut(string(unit), "\n"+key)
		line, _, _ := strings.Cut(rest, "\n")
		granted := strings.Fields(line)
		slices.Sort(granted)
		if !slices.Equal(granted, needed) {
			t.Errorf("%s%s\nwant %s", key, granted, needed)
		}
	}
	for _, name := range needed {
		if !strings.Contains(string(document), "`"+name+"`") {
			t.Errorf("docs/uplinks.md does not name %s", name)
		}
	}
}

// The errors of Check and Missing name what this process lacks. An empty need lacks nothing.
func TestCheck(t *testing.T) {
	if err := (Need{For: "nothing"}).Check(); err != nil {
		t.Error(err)
	}
	absent := cap.MaxBits() + 1 // no process has it
	err := Need{For: "a test", Capabilities: []cap.Value{absent}}.Check()
	if err == nil || !strings.HasPrefix(err.Error(), "a test needs ") || strings.Contains(err.Error(), "\n") {
		t.Errorf("%v, want one line that names the need", err)
	}
	for _, l := range Missing() {
		if Has(l.Capability) || len(l.For) == 0 {
			t.Errorf("%s for %q counts as missing", Name(l.Capability), l.For)
		}
	}
}

// Explain returns errors that are not about permissions as they are.
func TestExplain(t *testing.T) {
	other := errors.New("other")
	if err := Explain(other, "a remedy"); err != other {
		t.Error(err)
	}
	if err := Explain(nil, "a remedy"); err != nil {
		t.Error(err)
	}
}

// SPDX-License-Identifier: Apache-2.0

package logs

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
)

// A change of level and format applies to loggers that already exist. They keep their attributes.
func TestSettingsChangeAtRunTime(t *testing.T) {
	var out bytes.Buffer
	log, settings := New(&out)
	port := log.With("port", "vm1").WithGroup("link")
	port.Debug("one")
	if out.Len() != 0 || settings.Level() != "info" || settings.Format() != Text {
		t.Errorf("%q at level %s in format %s", out.String(), settings.Level(), settings.Format())
	}
	if err := settings.Set("debug", ""); err != nil {
		t.Fatal(err)
	}
	port.Debug("two", "up", true)
	if got := out.String(); !strings.Contains(got, "level=DEBUG msg=two port=vm1 link.up=true") {
		t.Errorf("%q", got)
	}
	out.Reset()
	if err := settings.Set("", JSON); err != nil {
		t.Fatal(err)
	}
	port.Debug("three", "up", true)
	var record struct {
		Msg, Port string
		Link      struct{ Up bool }
	}
	if err := json.Unmarshal(out.Bytes(), &record); err != nil || record.Msg != "three" || record.Port != "vm1" || !record.Link.Up {
		t.Errorf("%q: %+v, %v", out.String(), record, err)
	}
	for _, wrong := range [][2]string{{"loud", ""}, {"info+1", ""}, {"warn", "xml"}} {
		if err := settings.Set(wrong[0], wrong[1]); err == nil || settings.Level() != "debug" || settings.Format() != JSON {
			t.Errorf("%q: %v, level %s, format %s", wrong, err, settings.Level(), settings.Format())
		}
	}
}

// A line in the format ovs has Open vSwitch's fields. Text that a line contains cannot look like the
// beginning of another line.
func TestOVSFormat(t *testing.T) {
	var out bytes.Buffer
	log, settings := New(&out)
	if err := settings.Set("debug", OVS); err != nil {
		t.Fatal(err)
	}
	port := log.With("port", "vm1").WithGroup("link")
	port.Warn("one", "why", "a\n2023|ERR|b")
	log.Error("two")
	log.Debug("three")
	lines := strings.Split(strings.TrimSuffix(out.String(), "\n"), "\n")
	want := []string{`Z|00001|logs|WARN|one port=vm1 link.why="a\n2023|ERR|b"`, "Z|00002|logs|ERR|two", "Z|00003|logs|DBG|three"}
	if len(lines) != len(want) {
		t.Fatalf("%q", lines)
	}
	for i, line := range lines {
		if at, rest, _ := strings.Cut(line, "Z"); "Z"+rest != want[i] || len(at) != len("2023-01-01T00:00:00.000") {
			t.Errorf("%q, expected %q", line, want[i])
		}
	}
}

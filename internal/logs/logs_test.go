// SPDX-License-Identifier: Apache-2.0

package logs

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
)

// Loggers that exist already follow a change of level and format, with their attributes.
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

// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"testing"
)

// The alert rules and the dashboard use only metrics that exist.
func TestPackagedMetricNames(t *testing.T) {
	known := map[string]bool{}
	for pattern, name := range map[string]*regexp.Regexp{
		"*.go":           regexp.MustCompile(`describe\("([a-z_]+)"`),
		"../limits/*.go": regexp.MustCompile(`NewDesc\("weft_([a-z_]+)"`),
	} {
		for _, path := range glob(t, pattern) {
			for _, m := range name.FindAllStringSubmatch(read(t, path), -1) {
				known["weft_"+m[1]] = true
			}
		}
	}
	if len(known) < 40 {
		t.Fatalf("only %d metrics found in the source", len(known))
	}
	for _, path := range []string{"../../packaging/weft-alerts.yml", "../../packaging/weft-dashboard.json"} {
		used := regexp.MustCompile(`\bweft_[a-z_]+`).FindAllString(read(t, path), -1)
		if len(used) < 5 {
			t.Errorf("%s uses %d metrics only", path, len(used))
		}
		for _, name := range used {
			if !known[name] {
				t.Errorf("%s uses %s, which is no metric", path, name)
			}
		}
	}
	var dashboard struct {
		Panels []struct{ Title string }
	}
	if err := json.Unmarshal([]byte(read(t, "../../packaging/weft-dashboard.json")), &dashboard); err != nil || len(dashboard.Panels) == 0 {
		t.Errorf("the dashboard has %d panels: %v", len(dashboard.Panels), err)
	}
}

func glob(t *testing.T, pattern string) []string {
	t.Helper()
	paths, err := filepath.Glob(pattern)
	if err != nil {
		t.Fatal(err)
	}
	return paths
}

func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

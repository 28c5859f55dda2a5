// SPDX-License-Identifier: Apache-2.0

package packet

import (
	"os"
	"regexp"
	"testing"
)

// docs/drops.md has one row for each drop reason, and no other rows.
func TestEveryDropReasonIsDocumented(t *testing.T) {
	text, err := os.ReadFile("../docs/drops.md")
	if err != nil {
		t.Fatal(err)
	}
	rows := map[string]int{}
	for _, m := range regexp.MustCompile("(?m)^\\| `([a-z0-9-]+)` \\|").FindAllStringSubmatch(string(text), -1) {
		rows[m[1]]++
	}
	for r := DropNone + 1; r < dropReasonCount; r++ {
		if rows[r.String()] != 1 {
			t.Errorf("%s has %d rows in docs/drops.md", r, rows[r.String()])
		}
		delete(rows, r.String())
	}
	for name := range rows {
		t.Errorf("docs/drops.md: there is no reason %s", name)
	}
}

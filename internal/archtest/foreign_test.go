// SPDX-License-Identifier: Apache-2.0

package archtest

import (
	"os"
	"path/filepath"
	"regexp"
	"testing"
)

// Package vhost signals a front end's eventfds only through shm.Foreign and never
// reads them, because they may block. fault.go only uses Weft's own eventfds.
func TestEventsOfFrontEndsAreForeign(t *testing.T) {
	own := regexp.MustCompile(`shm\.(SignalOwn|DrainOwn)\b|unix\.(Write|Read)\(`)
	for _, f := range files(t) {
		if f.test || f.dir != "vhost" || f.path == "vhost/fault.go" {
			continue
		}
		source, err := os.ReadFile(filepath.Join("../..", f.path))
		if err != nil {
			t.Fatal(err)
		}
		if at := own.Find(source); at != nil {
			t.Errorf("%s has %s: a front end that clears O_NONBLOCK blocks it", f.path, at)
		}
	}
	if !own.MatchString("shm.SignalOwn(fd)") || own.MatchString("e.Signal()") {
		t.Error("the expression does not tell own events from foreign ones")
	}
}

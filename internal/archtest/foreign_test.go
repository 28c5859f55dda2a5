// SPDX-License-Identifier: Apache-2.0

package archtest

import (
	"os"
	"path/filepath"
	"regexp"
	"testing"
)

// Package vhost signals the eventfds of a front end only through shm.Foreign, and never reads them. A
// read or write of them may block. The exempt file uses only Weft's own eventfds.
func TestEventsOfFrontEndsAreForeign(t *testing.T) {
	own := regexp.MustCompile(`shm\.(SignalOwn|DrainOwn)\b|unix\.(Write|Read)\(`)
	const exempt = "vhost/fault.go"
	needed := false
	for _, f := range files(t) {
		if f.test || f.dir != "vhost" {
			continue
		}
		source, err := os.ReadFile(filepath.Join("../..", f.path))
		if err != nil {
			t.Fatal(err)
		}
		if at := own.Find(source); at != nil && f.path == exempt {
			needed = true
		} else if at != nil {
			t.Errorf("%s has %s: a front end that clears O_NONBLOCK blocks it", f.path, at)
		}
	}
	if !needed {
		t.Errorf("%s needs no exemption; remove it", exempt)
	}
	if !own.MatchString("shm.SignalOwn(fd)") || own.MatchString("e.Signal()") {
		t.Error("the expression does not tell own events from foreign ones")
	}
}

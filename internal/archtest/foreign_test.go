// SPDX-License-Identifier: Apache-2.0

package archtest

import (
	"os"
	"path/filepath"
	"regexp"
	"testing"
)

// A front end can make the eventfds of its rings blocking at any time. So package
// vhost may signal them only through shm.Foreign, and may not read them. The file
// fault.go is an exception, because it uses eventfds that no front end has.
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

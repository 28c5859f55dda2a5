// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"strings"
	"time"
)

// auditSteps is the number of steps that an audit keeps.
const auditSteps = 100

// audit keeps a line for each of the last steps of a storm, the test that plays random attacks
// (storm.go). If frames are lost without being counted, the lines show in which step.
type audit struct{ events []string }

// step appends a line for one step of the storm. "missing" is the number of frames that were sent, but
// neither received nor counted as dropped. It includes the frames in flight.
func (a *audit) step(event string, missing int64) {
	a.events = append(a.events, fmt.Sprintf("%s missing %d: %s", time.Now().Format("15:04:05.000"), missing, event))
	a.events = a.events[max(0, len(a.events)-auditSteps):]
}

func (a *audit) print() {
	fmt.Fprintf(os.Stderr, "the last steps:\n  %s\n", strings.Join(a.events, "\n  "))
}

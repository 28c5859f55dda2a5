// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"strings"
	"time"
)

// auditSteps is the number of steps of a storm that the audit prints.
const auditSteps = 100

// audit has the last steps of a storm, to find the one that loses frames without a count.
type audit struct{ events []string }

// step records what a step did, and the number of frames that are missing after it: sent,
// and neither received nor counted. Frames in flight are missing too.
func (a *audit) step(event string, missing int64) {
	a.events = append(a.events, fmt.Sprintf("%s missing %d: %s", time.Now().Format("15:04:05.000"), missing, event))
	a.events = a.events[max(0, len(a.events)-auditSteps):]
}

func (a *audit) print() {
	fmt.Fprintf(os.Stderr, "the last steps:\n  %s\n", strings.Join(a.events, "\n  "))
}

// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"time"
)

// auditSteps is the number of steps of a storm after which a frame that is neither
// received nor counted is lost. Frames wait for control for 2 s at most.
const auditSteps = 50

// audit finds the step of a storm in which frames are lost without a count.
type audit struct {
	missing []int64  // missing frames after each of the last auditSteps steps
	events  []string // what the storm did in these steps
	known   int64    // missing frames that the audit has reported
}

// step records what a step did and the number of frames that are missing after it: sent,
// and neither received nor counted. It prints the last steps when a number of frames has
// been missing since their begin.
func (a *audit) step(event string, missing int64) {
	a.missing = append(a.missing, missing)
	a.events = append(a.events, fmt.Sprintf("%s missing %d: %s", time.Now().Format("15:04:05.000"), missing, event))
	if len(a.missing) < 2*auditSteps {
		return
	}
	if low := slices.Min(a.missing[auditSteps:]); low > a.known {
		a.known = low
		fmt.Fprintf(os.Stderr, "%d frames are missing:\n  %s\n", low, strings.Join(a.events, "\n  "))
	}
	a.missing, a.events = a.missing[1:], a.events[1:]
}

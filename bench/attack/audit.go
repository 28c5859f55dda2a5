// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"time"
)

// auditSteps is the number of storm steps after which a frame counts as lost if it was
// neither received nor counted as dropped. Frames wait for control for at most 2 s.
const auditSteps = 50

// audit finds the step of a storm in which frames are lost without a count.
type audit struct {
	missing []int64  // number of missing frames after each of the last auditSteps steps
	events  []string // what the storm did in these steps
	known   int64    // number of missing frames that the audit has already reported
}

// step records a step of the storm. event says what the step did. missing is the number
// of frames that were sent and neither received nor counted as dropped. If frames have
// been missing during all of the last steps, step prints these steps.
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

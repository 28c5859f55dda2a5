// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"strings"
	"time"
)

// auditSteps is the number of recent storm steps that the audit keeps and prints.
const auditSteps = 100

// audit keeps the last steps of a storm. They show which step has lost frames that the switch did not
// count.
type audit struct{ events []string }

// step records a step, and how many frames are missing after it. A frame is missing if it was sent, but
// neither received nor counted as dropped. Frames in flight are missing too.
func (a *audit) step(event string, missing int64) {
	a.events = append(a.events, fmt.Sprintf("%s missing %d: %s", time.Now().Format("15:04:05.000"), missing, event))
	a.events = a.events[max(0, len(a.events)-auditSteps):]
}

func (a *audit) print() {
	fmt.Fprintf(os.Stderr, "the last steps:\n  %s\n", strings.Join(a.events, "\n  "))
}

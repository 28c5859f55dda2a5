// SPDX-License-Identifier: Apache-2.0

package api

import (
	"fmt"
	"strings"
)

// Text returns the trace in the format of ovs-appctl ofproto/trace.
func (t *Trace) Text() string {
	var b strings.Builder
	fmt.Fprintf(&b, "Flow: %s\n\n", orAny(t.Flow))
	bridge := ""
	for i := range t.Steps {
		s := &t.Steps[i]
		in := strings.Repeat("    ", s.Depth)
		if s.Bridge != bridge {
			bridge = s.Bridge
			fmt.Fprintf(&b, "%sbridge %q\n", in, bridge)
		}
		switch {
		case s.Kind == StepTable && s.Rule == nil:
			fmt.Fprintf(&b, "%s%2d. no match%s\n", in, s.Table, remark(s.Note))
		case s.Kind == StepTable:
			fmt.Fprintf(&b, "%s%2d. %s, priority %d%s%s\n", in, s.Table, orAny(s.Rule.Match), s.Rule.Priority, cookie(s.Rule.Cookie), remark(s.Note))
			if s.Rule.Actions == "drop" {
				fmt.Fprintf(&b, "%s    drop\n", in)
			}
		case s.Kind == StepAction:
			fmt.Fprintf(&b, "%s    %s\n", in, s.Action)
		default:
			fmt.Fprintf(&b, "%s     >> %s\n", in, s.Note)
		}
	}
	fmt.Fprintf(&b, "\nMegaflow: %s\nDatapath actions: %s\n", orAny(t.Megaflow), t.Actions)
	for i := range t.Then {
		heading := "Looked up again"
		if t.Then[i].Tracked {
			heading = "Once it is tracked"
		}
		b.WriteString("\n" + heading + ":\n" + t.Then[i].Text())
	}
	return b.String()
}

func orAny(match string) string {
	if match == "" {
		return "any frame"
	}
	return match
}

func cookie(c uint64) string {
	if c == 0 {
		return ""
	}
	return fmt.Sprintf(", cookie %#x", c)
}

func remark(note string) string {
	if note == "" {
		return ""
	}
	return " (" + note + ")"
}

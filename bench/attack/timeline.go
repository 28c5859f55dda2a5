// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strings"
	"time"
)

// incident is a line of a storm's timeline: a kill, a move or a stall by the storm, or the replacement
// of an engine that the storm did not kill.
type incident struct {
	AtS     float64 `json:"at_s"` // seconds since the storm began
	Event   string  `json:"event"`
	Control [2]int  `json:"control_pid"` // process ID before and after
	Engine  [2]int  `json:"engine_pid"`
	// PauseMS is the longest time without a frame at the two guests, and MachineMS the longest delay of
	// a timer on this machine meanwhile. If PauseMS is not larger than MachineMS, the machine has
	// caused the pause.
	PauseMS   float64 `json:"pause_ms"`
	MachineMS float64 `json:"machine_ms"`
	// Log has the lines about engines in the log of the control process: why it has replaced an engine,
	// and which port it blames.
	Log []string `json:"log,omitempty"`
}

// mostIncidentLines limits the lines of incident.Log.
const mostIncidentLines = 20

// replacedEvent is the event of an incident in which an engine ended although the storm did not kill
// it.
const replacedEvent = "engine replaced by control"

// controlLog says how much of the control process's log was read. Each new control process has a log of
// its own.
type controlLog struct {
	file string
	read int // number of bytes that were read
}

// since returns the lines about engines that were added to the log since the last call. text is the
// whole log, and file its name.
func (c *controlLog) since(file, text string) (lines []string) {
	if file != c.file {
		c.file, c.read = file, 0
	}
	end := strings.LastIndexByte(text, '\n') + 1 // leaves an incomplete line to the next call
	for line := range strings.Lines(text[min(c.read, end):end]) {
		if aboutEngines(line) && len(lines) < mostIncidentLines {
			lines = append(lines, strings.TrimSpace(line))
		}
	}
	c.read = max(c.read, end)
	return lines
}

// aboutEngines reports whether a line of the control process's log says that an engine hangs, has ended
// or cannot start.
func aboutEngines(line string) bool {
	return (strings.Contains(line, "level=ERROR") || strings.Contains(line, "level=WARN")) && strings.Contains(line, "engine")
}

// processes has the process IDs of the control process and of the engine.
type processes struct{ control, engine int }

func (w *storming) processes() processes {
	return processes{w.daemon.Control().PID(), w.daemon.EnginePID()}
}

// noteIncident completes an incident and appends it to the timeline. oldProcesses has the process IDs
// before it. "ended" is true if an engine has ended. An incident that has no event is appended only if
// "ended" is true.
func (w *storming) noteIncident(i *incident, oldProcesses processes, ended bool) {
	control := w.daemon.Control()
	i.Log = w.controlLog.since(control.Log, control.Output())
	if i.Event == "" {
		if !ended {
			return
		}
		i.Event = replacedEvent
	}
	now := w.processes()
	i.AtS = time.Since(w.begun).Seconds()
	i.Control, i.Engine = [2]int{oldProcesses.control, now.control}, [2]int{oldProcesses.engine, now.engine}
	w.r.Timeline = append(w.r.Timeline, *i)
}

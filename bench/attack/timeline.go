// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strings"
	"time"
)

// incident is a line of a storm's timeline: a kill, a move or a stall by the storm, or an engine that
// control has replaced without a kill of the storm.
type incident struct {
	AtS     float64 `json:"at_s"` // seconds since the storm began
	Event   string  `json:"event"`
	Control [2]int  `json:"control_pid"` // before and after
	Engine  [2]int  `json:"engine_pid"`
	// PauseMS is the bystanders' pause, MachineMS the longest delay of a timer on this machine meanwhile. A
	// pause that is not longer than this delay is the machine's.
	PauseMS   float64 `json:"pause_ms"`
	MachineMS float64 `json:"machine_ms"`
	// Log has what control has logged about engines meanwhile: why it replaced one, and which port it blames.
	Log []string `json:"log,omitempty"`
}

// mostIncidentLines limits the lines of incident.Log.
const mostIncidentLines = 20

// replacedEvent is the event of an engine that ended although the storm did not kill it.
const replacedEvent = "engine replaced by control"

// controlLog reads what control logs. A control that the storm kills has another log than the next one.
type controlLog struct {
	file string
	read int // length of what was read
}

// since returns the lines of text about engines that were not there at the last call. file is the name
// of the log.
func (c *controlLog) since(file, text string) (lines []string) {
	if file != c.file {
		c.file, c.read = file, 0
	}
	end := strings.LastIndexByte(text, '\n') + 1 // the next call reads a line that is not complete
	for line := range strings.Lines(text[min(c.read, end):end]) {
		if aboutEngines(line) && len(lines) < mostIncidentLines {
			lines = append(lines, strings.TrimSpace(line))
		}
	}
	c.read = max(c.read, end)
	return lines
}

// aboutEngines reports whether a line of control's log says that an engine hangs, has ended or cannot start.
func aboutEngines(line string) bool {
	return (strings.Contains(line, "level=ERROR") || strings.Contains(line, "level=WARN")) && strings.Contains(line, "engine")
}

// processes has the process ids of the switch.
type processes struct{ control, engine int }

func (w *storming) processes() processes {
	return processes{w.daemon.Control().PID(), w.daemon.EnginePID()}
}

// noteIncident completes an incident and appends it to the timeline. oldProcesses has the processes at its
// beginning. If the storm did nothing, noteIncident appends only an engine that has ended.
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

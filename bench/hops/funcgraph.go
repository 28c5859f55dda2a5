// SPDX-License-Identifier: Apache-2.0

package hops

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
)

// The kernel's function_graph tracer prints one line for a call of a leaf function. It prints
// two lines for any other call; the second has the duration:
//
//	4)   0.093 us    |    sock_tx_timestamp();
//	4)               |    sk_dst_check() {
//	4)   0.033 us    |      ipv4_dst_check();
//	4)   0.449 us    |    }
//
// The number at the start is the CPU; lines of different CPUs alternate. One of the
// marks + ! # * @ $ precedes a long duration. A task switch on a CPU has a line of
// its own:
//
//	1)  busybox-204   =>  kthreadd-2

var (
	graphLine = regexp.MustCompile(`^\s*(\d+)\)\s+(?:[-+!#*@$]\s*)?(?:([0-9.]+) us)?\s*\|\s*(.*)$`)
	graphCall = regexp.MustCompile(`^(\S+?)(?: (\[\S+\]))?\(.*\)(;| \{)`)
	graphEnd  = regexp.MustCompile(`^\} /\* ([^\s\[]+)`)
	graphTurn = regexp.MustCompile(`^\s*(\d+)\)\s+(\S.*-\d+)\s+=>\s+(\S.*-\d+)$`)
	graphLost = regexp.MustCompile(`LOST \d+ EVENTS`)
)

// graphCaller is a call that has not returned yet. It sums the durations of the calls that it
// has made.
type graphCaller struct {
	Function
	callees float64
}

type graphTask struct {
	open []graphCaller
	own  []Own
}

// graph is the state of a function_graph parser.
type graph struct {
	tasks map[string]*graphTask
	runs  map[string]string
}

// task returns the task that runs on a CPU. Until a task switch tells its name, it has the
// CPU's number as its name.
func (g *graph) task(cpu string) *graphTask {
	name := g.runs[cpu]
	if name == "" {
		name = cpu
		g.runs[cpu] = name
	}
	if g.tasks[name] == nil {
		g.tasks[name] = new(graphTask)
	}
	return g.tasks[name]
}

func (g *graph) turn(cpu, from, to string) {
	if g.runs[cpu] == cpu { // the CPU's first task switch in the trace tells the name of the task that ran before it
		g.tasks[idle(cpu, from)] = g.tasks[cpu]
		delete(g.tasks, cpu)
	}
	g.runs[cpu] = idle(cpu, to)
}

// idle returns a name for the idle task of a CPU. All idle tasks have process id 0, so
// the name contains the CPU.
func idle(cpu, task string) string {
	if strings.HasSuffix(task, "-0") {
		return task + " of " + cpu
	}
	return task
}

func parseGraph(lines []string) (*Recording, error) {
	r := &Recording{Unit: UnitTime}
	g := &graph{tasks: map[string]*graphTask{}, runs: map[string]string{}}
	for i, line := range lines {
		if graphLost.MatchString(line) {
			return nil, fmt.Errorf("line %d: the trace has lost events: its sums would be wrong", i+1)
		}
		if m := graphTurn.FindStringSubmatch(line); m != nil {
			g.turn(m[1], m[2], m[3])
			continue
		}
		m := graphLine.FindStringSubmatch(line)
		if m == nil || strings.HasPrefix(line, "#") {
			continue
		}
		call, err := g.task(m[1]).line(m[2], m[3])
		if err != nil {
			return nil, fmt.Errorf("line %d: %w", i+1, err)
		}
		if call != nil {
			r.Calls = append(r.Calls, *call)
			r.Total += call.Total
		}
	}
	// Calls that did not return before the end of the trace are missing, because their time is
	// unknown.
	if len(r.Calls) == 0 {
		return nil, fmt.Errorf("no call is complete")
	}
	return r, nil
}

// line parses one line of a trace. If the line ends an outermost call, the result is this call,
// otherwise nil.
func (c *graphTask) line(duration, text string) (*Call, error) {
	if strings.HasPrefix(text, "}") {
		if len(c.open) == 0 {
			return nil, nil // the end of a call that began before the trace
		}
		if duration == "" {
			return nil, fmt.Errorf("the end of %s has no time", c.open[len(c.open)-1].Name)
		}
		if m := graphEnd.FindStringSubmatch(text); m != nil && m[1] != c.open[len(c.open)-1].Name {
			return nil, fmt.Errorf("%s ends where %s should", m[1], c.open[len(c.open)-1].Name)
		}
		return c.end(duration)
	}
	m := graphCall.FindStringSubmatch(text)
	if m == nil {
		return nil, nil // a mark of an interrupt or a comment of the tracer
	}
	c.open = append(c.open, graphCaller{Function: Function{m[1], m[2]}})
	if m[3] == ";" {
		return c.end(duration)
	}
	return nil, nil
}

func (c *graphTask) end(duration string) (*Call, error) {
	last := len(c.open) - 1
	took, err := strconv.ParseFloat(duration, 64)
	if err != nil {
		return nil, fmt.Errorf("%s has no time", c.open[last].Name)
	}
	path := make([]Function, 0, len(c.open))
	for _, f := range c.open {
		path = append(path, f.Function)
	}
	c.own = append(c.own, Own{path, took - c.open[last].callees})
	c.open = c.open[:last]
	if last > 0 {
		c.open[last-1].callees += took
		return nil, nil
	}
	call := &Call{Function: path[0].Name, Total: took, Own: c.own}
	c.own = nil
	return call, nil
}

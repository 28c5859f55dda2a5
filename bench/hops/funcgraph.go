package hops

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
)

// A function_graph trace has a line for each call of a leaf, and two for others,
// of which the second has the time:
//
//	4)   0.093 us    |    sock_tx_timestamp();
//	4)               |    sk_dst_check() {
//	4)   0.033 us    |      ipv4_dst_check();
//	4)   0.449 us    |    }
//
// Before a long time stands a mark (+ ! # * @ $). Processors take turns.

var (
	graphLine = regexp.MustCompile(`^\s*(\d+)\)\s+(?:[-+!#*@$]\s*)?(?:([0-9.]+) us)?\s*\|\s*(.*)$`)
	graphCall = regexp.MustCompile(`^(\S+?)(?: (\[\S+\]))?\(.*\)(;| \{)`)
	graphLost = regexp.MustCompile(`LOST \d+ EVENTS`)
)

// graphCaller is a call that has begun and not ended, and what its callees took.
type graphCaller struct {
	Function
	callees float64
}

// graphCPU is what goes on on a processor.
type graphCPU struct {
	open []graphCaller
	own  []Own
}

func parseGraph(lines []string) (*Recording, error) {
	r := &Recording{Unit: UnitTime}
	cpus := map[string]*graphCPU{}
	for i, line := range lines {
		if graphLost.MatchString(line) {
			return nil, fmt.Errorf("line %d: the trace has lost events: its sums would be wrong", i+1)
		}
		m := graphLine.FindStringSubmatch(line)
		if m == nil || strings.HasPrefix(line, "#") {
			continue
		}
		cpu := cpus[m[1]]
		if cpu == nil {
			cpu = new(graphCPU)
			cpus[m[1]] = cpu
		}
		call, err := cpu.line(m[2], m[3])
		if err != nil {
			return nil, fmt.Errorf("line %d: %w", i+1, err)
		}
		if call != nil {
			r.Calls = append(r.Calls, *call)
			r.Total += call.Total
		}
	}
	for _, cpu := range cpus {
		if len(cpu.open) > 0 {
			return nil, fmt.Errorf("%s did not return before the trace ended", cpu.open[0].Name)
		}
	}
	if len(r.Calls) == 0 {
		return nil, fmt.Errorf("no call is complete")
	}
	return r, nil
}

// line takes one line, and returns the outermost call that it ends, if it does.
func (c *graphCPU) line(duration, text string) (*Call, error) {
	if strings.HasPrefix(text, "}") {
		if len(c.open) == 0 {
			return nil, nil // of a call that had begun before the trace did
		}
		if duration == "" {
			return nil, fmt.Errorf("the end of %s has no time", c.open[len(c.open)-1].Name)
		}
		return c.end(duration)
	}
	m := graphCall.FindStringSubmatch(text)
	if m == nil {
		return nil, nil // a mark of an interrupt, a comment
	}
	c.open = append(c.open, graphCaller{Function: Function{m[1], m[2]}})
	if m[3] == ";" {
		return c.end(duration)
	}
	return nil, nil
}

// end closes the innermost call.
func (c *graphCPU) end(duration string) (*Call, error) {
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

// SPDX-License-Identifier: Apache-2.0

package hops

import (
	"fmt"
	"math"
	"regexp"
	"strconv"
	"strings"
)

// perf prints call graphs in two forms. A report has an entry for each function: the function's
// own share of the cycles, and below it the function's callers:
//
//	2.25%  replica  [kernel.kallsyms]  [k] select_estimate_accuracy
//	        |
//	         --2.14%--select_estimate_accuracy
//	                   |
//	                    --2.07%--ep_poll
//	                              do_epoll_wait
//
// The tree of perf's browser has the callees below their caller. A function's share includes
// its callees. A line without a share has the share of its caller:
//
//   - 8.74% handle_rx
//   - 3.72% tun_recvmsg
//     2.74% vhost_add_used_and_signal_n

var (
	reportEntry = regexp.MustCompile(`^\s+([0-9.]+)%\s+(\S+)\s+(\S+)\s+\[([k.ugH])\]\s+(.+)$`)
	reportStep  = regexp.MustCompile(`^[\s|]*(?:(--)([0-9.]+)%--|(---))?([^\s|-].*)$`)
	treeBranch  = regexp.MustCompile(`^\s+[-+] (?:[0-9.]+% )?\S+$`)
	treeLine    = regexp.MustCompile(`^(\s+(?:[-+] )?)(?:([0-9.]+)% )?(\S+)$`)
)

// chain is one branch of callers in perf's report, up to the next fork. The report indents all
// functions of a chain to the same column.
type chain struct {
	column int
	share  float64
	path   []Function
}

func parseReport(lines []string) (*Recording, error) {
	r := &Recording{Unit: UnitShare}
	call := Call{Function: "all"}
	var entry *reported
	flush := func() {
		if entry != nil {
			call.Own = append(call.Own, entry.own()...)
		}
	}
	for i, line := range lines {
		if strings.HasPrefix(line, "#") {
			continue
		}
		if m := reportEntry.FindStringSubmatch(line); m != nil {
			share, err := strconv.ParseFloat(m[1], 64)
			if err != nil {
				return nil, fmt.Errorf("line %d: %w", i+1, err)
			}
			flush()
			f := Function{Name: m[5]}
			if m[4] != "k" {
				f.Object = strings.Trim(m[3], "[]")
			}
			entry = &reported{function: f, share: share}
			call.Total += share
			continue
		}
		if m := reportStep.FindStringSubmatchIndex(line); m != nil && entry != nil {
			entry.step(line, m)
		}
	}
	flush()
	r.Total, r.Calls = call.Total, []Call{call}
	return r, nil
}

// reported is an entry of perf's report. The field "open" has the branches to which the next
// line may belong.
type reported struct {
	function Function
	share    float64
	open     []*chain
	chains   []*chain
}

func (e *reported) step(line string, m []int) {
	name, column := line[m[8]:m[9]], len([]rune(line[:m[8]]))
	mark := column
	branch := &chain{column: column, share: e.share}
	switch {
	case m[2] >= 0: // the line begins a branch, with the branch's share
		mark = len([]rune(line[:m[2]])) - 1
		branch.share, _ = strconv.ParseFloat(line[m[4]:m[5]], 64) // parsing cannot fail: the pattern matches only digits and points
	case m[6] >= 0:
		mark = len([]rune(line[:m[6]]))
	}
	for len(e.open) > 0 && e.open[len(e.open)-1].column > mark {
		e.open = e.open[:len(e.open)-1]
	}
	if m[2] < 0 && m[6] < 0 { // the line continues an open branch
		if len(e.open) > 0 {
			last := e.open[len(e.open)-1]
			last.path = append(last.path, Function{Name: name})
		}
		return
	}
	if len(e.open) > 0 { // the open branch forks
		from := e.open[len(e.open)-1]
		branch.path = append(branch.path, from.path...)
		from.share -= branch.share
	}
	branch.path = append(branch.path, Function{Name: name})
	e.open, e.chains = append(e.open, branch), append(e.chains, branch)
}

// rounding is the largest rounding error, in percent, of the difference of two
// shares. perf prints shares with two digits after the point.
const rounding = 0.0101

// own divides the entry's share among its branches. A remainder that no branch explains belongs
// to the function itself. If the remainder is only a rounding error, it goes to the largest
// branch.
func (e *reported) own() (list []Own) {
	rest := e.share
	largest := 0
	for _, c := range e.chains {
		path := c.path
		if len(path) == 0 || path[0].Name != e.function.Name {
			path = append([]Function{e.function}, path...)
		}
		outermostFirst := make([]Function, len(path))
		for i, f := range path {
			outermostFirst[len(path)-1-i] = f
		}
		outermostFirst[len(path)-1] = e.function
		if len(list) > 0 && c.share > list[largest].Value {
			largest = len(list)
		}
		list = append(list, Own{outermostFirst, c.share})
		rest -= c.share
	}
	if len(list) > 0 && math.Abs(rest) < rounding*float64(len(list)) {
		list[largest].Value += rest
		return list
	}
	return append(list, Own{[]Function{e.function}, rest})
}

type node struct {
	column  int
	name    string
	share   float64
	shown   bool // the tree shows a share for the node or for one of its callers
	callees []*node
}

// parseTree parses the tree of perf's browser. It merges several copies of the tree in
// which different branches are open.
func parseTree(lines []string) (*Recording, error) {
	root := &node{column: -1, share: math.NaN()}
	open := []*node{root}
	for i, line := range lines {
		m := treeLine.FindStringSubmatch(line)
		if m == nil {
			continue
		}
		n := &node{column: len(m[1]), name: m[3], share: math.NaN()}
		if m[2] != "" {
			var err error
			if n.share, err = strconv.ParseFloat(m[2], 64); err != nil {
				return nil, fmt.Errorf("line %d: %w", i+1, err)
			}
		}
		for open[len(open)-1].column >= n.column {
			open = open[:len(open)-1]
		}
		caller := open[len(open)-1]
		if math.IsNaN(n.share) {
			n.share = caller.share
		}
		n.shown = !math.IsNaN(n.share)
		open = append(open, caller.callee(n))
	}
	r := &Recording{Unit: UnitShare}
	for _, n := range root.callees {
		call := Call{Function: n.name}
		n.sumCallees()
		n.own(nil, &call.Own)
		call.Total = n.share
		r.Total += call.Total
		r.Calls = append(r.Calls, call)
	}
	return r, nil
}

func (n *node) callee(c *node) *node {
	for _, known := range n.callees {
		if known.name == c.name && (known.share == c.share || math.IsNaN(c.share)) {
			known.column = c.column
			return known
		}
	}
	n.callees = append(n.callees, c)
	return c
}

// sumCallees sets the share of a node without a share. It is the sum of the node's
// callees.
func (n *node) sumCallees() {
	if !math.IsNaN(n.share) {
		return
	}
	n.share = 0
	for _, c := range n.callees {
		c.sumCallees()
		n.share += c.share
	}
}

func (n *node) own(path []Function, dst *[]Own) {
	path = append(path[:len(path):len(path)], Function{Name: n.name})
	rest := n.share
	for _, c := range n.callees {
		rest -= c.share
		c.own(path, dst)
	}
	if n.shown {
		*dst = append(*dst, Own{path, rest})
	}
}

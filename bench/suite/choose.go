// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"slices"
	"strings"
)

// choose returns the selected experiments, each with the selected switches. selection is "" for the
// headline experiments, "all" for all, or a list of names or parts of names. peers is a list of names
// of switches, or "" for all. choose returns an error if a name matches nothing.
func choose(experiments []*experiment, selection, peers string) ([]*experiment, error) {
	var chosen []*experiment
	for _, e := range experiments {
		if selected(experiments, e, selection) {
			chosen = append(chosen, e)
		}
	}
	if len(chosen) == 0 {
		return nil, fmt.Errorf("-scenario: no experiment's name contains %q; -list prints them", selection)
	}
	if peers == "" {
		return chosen, nil
	}
	wanted := strings.Split(peers, ",")
	for _, p := range wanted {
		if !slices.ContainsFunc(experiments, func(e *experiment) bool { return slices.Contains(e.peers, p) }) {
			return nil, fmt.Errorf("-peers: no experiment knows %q; -list prints them", p)
		}
	}
	for _, e := range chosen {
		e.peers = slices.DeleteFunc(slices.Clone(e.peers), func(p string) bool { return !slices.Contains(wanted, p) }) // several experiments share a list of peers
	}
	chosen = slices.DeleteFunc(chosen, func(e *experiment) bool { return len(e.peers) == 0 })
	if len(chosen) == 0 {
		return nil, fmt.Errorf("-scenario %q -peers %q: no experiment is left; -list prints them", selection, peers)
	}
	return chosen, nil
}

func selected(experiments []*experiment, e *experiment, selection string) bool {
	switch selection {
	case "":
		return slices.Contains(headline, e.name)
	case "all":
		return true
	}
	words := selection
	longestFirst := slices.SortedStableFunc(slices.Values(experiments), func(a, b *experiment) int { return len(b.name) - len(a.name) })
	for _, other := range longestFirst { // names may contain commas, so longer names are matched first
		if strings.Contains(","+words+",", ","+other.name+",") {
			if e == other {
				return true
			}
			words = strings.Trim(strings.Replace(","+words+",", ","+other.name+",", ",", 1), ",")
		}
	}
	return words != "" && slices.ContainsFunc(strings.Split(words, ","), func(part string) bool { return strings.Contains(e.name, part) })
}

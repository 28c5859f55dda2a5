// SPDX-License-Identifier: Apache-2.0

package chart

import (
	"fmt"
	"slices"
)

// Part is a named section of a stacked bar.
type Part struct {
	Name  string
	Value float64
}

// StackBar is a labelled bar that is divided into parts, from left to right.
type StackBar struct {
	Label string
	Parts []Part
}

// Stack is a picture of stacked horizontal bars. Names has the names of all parts in
// the order of the legend, and Colours has the palette index of each name.
type Stack struct {
	Title, Note, Unit string
	Names             []string
	Colours           []int
	Bars              []StackBar
}

// SVG returns the picture as an SVG document. The label of a bar is above the bar,
// the total is after it.
func (c *Stack) SVG() string {
	const high, above, below = 30.0, 20.0, 12.0
	d := &drawing{}
	y := d.heading(c.Title, c.Note)
	var used []string
	var colours []int
	for i, name := range c.Names {
		if slices.ContainsFunc(c.Bars, func(b StackBar) bool {
			return slices.ContainsFunc(b.Parts, func(p Part) bool { return p.Name == name && p.Value > 0 })
		}) {
			used, colours = append(used, name), append(colours, c.Colours[i])
		}
	}
	y = d.legend(used, func(i int) string { return fmt.Sprint("f", colours[i]) }, y)
	longest := 0.0
	for _, b := range c.Bars {
		longest = max(longest, b.total())
	}
	x := newScale(0, longest, margin, width-margin-130, false)
	d.axis(x, y, y+(above+high+below)*float64(len(c.Bars)), c.Unit)
	for _, b := range c.Bars {
		d.text(margin, y+15, "start", "", b.Label)
		y += above
		at := 0.0
		for _, p := range b.Parts {
			if p.Value <= 0 {
				continue
			}
			colour := c.Colours[max(0, slices.Index(c.Names, p.Name))]
			from, to := x.position(at), x.position(at+p.Value)
			d.rect(from, y, to-from, high, fmt.Sprintf("f%d s", colour),
				fmt.Sprintf("%s: %s %s, %.1f %%", p.Name, Number(p.Value), c.Unit, 100*p.Value/b.total()))
			if smallWide*float64(len([]rune(p.Name))) < to-from-2 {
				d.text((from+to)/2, y+high/2+4, "middle", fmt.Sprintf("t%d n", colour), p.Name)
			}
			at += p.Value
		}
		d.text(x.position(at)+6, y+high/2+4, "start", "", Number(b.total())+" "+c.Unit)
		y += high + below
	}
	d.height = y + 40
	return d.finish(c.Title)
}

func (b StackBar) total() (sum float64) {
	for _, p := range b.Parts {
		sum += p.Value
	}
	return sum
}

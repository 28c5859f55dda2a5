// SPDX-License-Identifier: Apache-2.0

package chart

import (
	"fmt"
	"strings"
)

// Point is a measured point: Y is the median of several runs, Min and Max are the
// smallest and the largest run.
type Point struct{ X, Y, Min, Max float64 }

// Line is a named series of points in the order of X.
type Line struct {
	Name   string
	Points []Point
}

// Lines is a line chart of measurements against a parameter.
type Lines struct {
	Title, Note  string
	XUnit, YUnit string
	XLog, YLog   bool
	Lines        []Line
	Colours      []int // palette index of each line; nil means the order of the palette
}

// SVG returns the line chart as an SVG document. A point's whiskers go from the
// smallest to the largest run.
func (c *Lines) SVG() string {
	const high = 300.0
	d := &drawing{}
	y := d.heading(c.Title, c.Note)
	var names []string
	var all []Point
	for _, l := range c.Lines {
		names, all = append(names, l.Name), append(all, l.Points...)
	}
	if len(all) == 0 {
		d.height = y + 20
		return d.finish(c.Title)
	}
	y = d.legend(names, func(i int) string { return seriesClass(c.colour(i)) }, y) + 18
	lowX, highX, lowY, highY := all[0].X, all[0].X, all[0].Min, all[0].Max
	for _, p := range all {
		lowX, highX = min(lowX, p.X), max(highX, p.X)
		lowY, highY = min(lowY, p.Min, p.Y), max(highY, p.Max, p.Y)
	}
	sx := newScale(lowX, highX, margin+64, width-margin-20, c.XLog && lowX > 0)
	sy := newScale(lowY, highY, y+high, y, c.YLog && lowY > 0)
	for _, t := range sy.ticks {
		d.line(sx.from, sy.position(t), sx.to, sy.position(t), "g")
		d.text(sx.from-8, sy.position(t)+4, "end", "n", tick(t))
	}
	d.text(margin, y-10, "start", "n", c.YUnit)
	d.axis(sx, y, y+high, c.XUnit)
	for i, l := range c.Lines {
		d.curve(sx, sy, l, c.colour(i)%Reds, c.YUnit)
	}
	d.height = y + high + 42
	return d.finish(c.Title)
}

func (c *Lines) colour(i int) int {
	if c.Colours != nil {
		return c.Colours[i]
	}
	return i
}

func (d *drawing) curve(sx, sy scale, l Line, colour int, unit string) {
	var path strings.Builder
	for i, p := range l.Points {
		fmt.Fprintf(&path, "%s%s,%s", []string{"", " "}[min(i, 1)], px(sx.position(p.X)), px(sy.position(p.Y)))
	}
	fmt.Fprintf(d, `<polyline points="%s" class="c l%d"/>`+"\n", path.String(), colour)
	for _, p := range l.Points {
		x, y := sx.position(p.X), sy.position(p.Y)
		if p.Max > p.Min {
			d.line(x, sy.position(p.Min), x, sy.position(p.Max), fmt.Sprintf("l%d", colour))
			d.line(x-3, sy.position(p.Min), x+3, sy.position(p.Min), fmt.Sprintf("l%d", colour))
			d.line(x-3, sy.position(p.Max), x+3, sy.position(p.Max), fmt.Sprintf("l%d", colour))
		}
		fmt.Fprintf(d, `<circle cx="%s" cy="%s" r="3.5" class="f%d"><title>%s</title></circle>`+"\n", px(x), px(y), colour,
			escape(fmt.Sprintf("%s: %s %s (%s to %s)", l.Name, Number(p.Y), unit, Number(p.Min), Number(p.Max))))
	}
}

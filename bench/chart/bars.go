// SPDX-License-Identifier: Apache-2.0

package chart

import "fmt"

// Bar is a bar of a chart: the median, the smallest and the largest run of a
// measurement. If there is no measurement, Missing gives the reason.
type Bar struct {
	Series           int // index into Bars.Series
	Median, Min, Max float64
	Note             string // text after the bar's value
	Missing          string
}

// Group is a labelled set of bars that are drawn together for comparison.
type Group struct {
	Label string
	Bars  []Bar
}

// Bars is a picture of horizontal bars. A bar shows the median of several runs, its
// whiskers the smallest and the largest run.
type Bars struct {
	Title, Note string
	Unit        string // unit of all values, printed at the axis
	Log         bool
	Series      []string
	Colours     []int // palette index of each series; nil means the order of the palette
	Groups      []Group
}

// heights in pixels: of a bar, and of the gap above and below a group of bars
const barHigh, gapHigh = 15, 6

// SVG returns the picture as an SVG document.
func (c *Bars) SVG() string {
	d := &drawing{}
	y := d.heading(c.Title, c.Note)
	y = d.legend(c.Series, c.class, y)
	labels, low, high := 0, 0.0, 0.0
	for _, g := range c.Groups {
		labels = max(labels, len([]rune(g.Label)))
		for _, b := range g.Bars {
			if b.Missing != "" {
				continue
			}
			high = max(high, b.Median, b.Max)
			if low == 0 || b.Min < low {
				low = b.Min
			}
		}
	}
	left := min(margin+charWide*float64(labels)+10, 320)
	x := newScale(low, high, left, width-margin-170, c.Log && low > 0)
	bottom := y
	for _, g := range c.Groups {
		bottom += barHigh*float64(len(g.Bars)) + 2*gapHigh
	}
	d.axis(x, y, bottom, c.Unit)
	for _, g := range c.Groups {
		y += gapHigh
		d.text(left-8, y+barHigh*float64(len(g.Bars))/2+4, "end", "", g.Label)
		for _, b := range g.Bars {
			d.bar(x, y, b, c.Series[b.Series], c.class(b.Series), c.Unit)
			y += barHigh
		}
		y += gapHigh
	}
	d.height = y + 40
	return d.finish(c.Title)
}

func (c *Bars) class(i int) string {
	if c.Colours != nil {
		i = c.Colours[i]
	}
	return seriesClass(i)
}

// seriesClass returns the CSS class of palette colour i. Series use no reds or blues.
func seriesClass(i int) string { return fmt.Sprint("f", i%Reds) }

func (d *drawing) bar(x scale, y float64, b Bar, series, class, unit string) {
	if b.Missing != "" {
		d.text(x.from+4, y+barHigh-4, "start", "n", series+": "+b.Missing)
		return
	}
	title := fmt.Sprintf("%s: %s %s (%s to %s)", series, Number(b.Median), unit, Number(b.Min), Number(b.Max))
	d.rect(x.from, y+1, x.position(b.Median)-x.from, barHigh-2, class, title)
	middle := y + barHigh/2.0
	if b.Max > b.Min {
		d.line(x.position(b.Min), middle, x.position(b.Max), middle, "w")
		d.line(x.position(b.Min), middle-3, x.position(b.Min), middle+3, "w")
		d.line(x.position(b.Max), middle-3, x.position(b.Max), middle+3, "w")
	}
	text := Number(b.Median)
	if b.Note != "" {
		text += "  " + b.Note
	}
	d.text(max(x.position(b.Max), x.position(b.Median))+6, y+barHigh-4, "start", "n", text)
}

// axis draws a horizontal axis at height y. Grid lines go from the axis up to height
// top.
func (d *drawing) axis(x scale, top, y float64, unit string) {
	for _, t := range x.ticks {
		d.line(x.position(t), top, x.position(t), y, "g")
		d.text(x.position(t), y+14, "middle", "n", tick(t))
	}
	d.text((x.from+x.to)/2, y+30, "middle", "n", unit)
}

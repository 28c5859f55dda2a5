// SPDX-License-Identifier: Apache-2.0

// Package chart draws benchmark results as SVG pictures without scripts and fonts.
// The same results give the same bytes. Each picture has colours for light and for
// dark backgrounds, and the reader's browser chooses between them.
package chart

import (
	"encoding/xml"
	"fmt"
	"math"
	"strconv"
	"strings"
)

const (
	width    = 900
	margin   = 16
	lineHigh = 18
	// average width of a character in pixels, in text of 12 px and of 11 px
	charWide, smallWide = 6.6, 6.0
)

// palette has the fill colours, each for a light and for a dark background.
// Neighbouring colours also differ in lightness, for colour-blind readers.
var palette = [][2]string{
	{"#0b5fa5", "#5aa9e6"}, {"#e08a00", "#f2b04a"}, {"#118a66", "#3cc79b"}, {"#b13d80", "#e38abf"},
	{"#7a7a7a", "#b0b0b0"}, {"#6cc0ea", "#2f7ea8"}, {"#8a6d00", "#d6b93a"}, {"#6a4fb3", "#a995ea"},
	{"#b8d86b", "#6f8f22"}, {"#2f7d32", "#7cc47f"}, {"#a9c4dd", "#41698c"}, {"#4b3b78", "#8877bd"},
	{"#f0c98c", "#8f6a2c"}, {"#005f60", "#3aa5a6"}, {"#d9a6c8", "#8a4f78"}, {"#3d3d3d", "#e0e0e0"},
	{"#c7c7c7", "#6d6d6d"}, {"#7b4a12", "#c98d4e"}, {"#9edcc6", "#2f7a60"}, {"#cfc2f2", "#5b4a94"},
	{"#2a3f6f", "#7d97d6"}, {"#e3d26a", "#7d7120"}, {"#8c9a3a", "#b9c766"}, {"#9c9c9c", "#4e4e4e"},
	// reds of the palette, for related parts of a stacked bar
	{"#f2a48a", "#8c3a26"}, {"#d9432f", "#e06a5c"}, {"#a11222", "#f09a90"}, {"#e8756a", "#b04a3c"},
	// blues of the palette, for related parts of a stacked bar
	{"#c3d4ff", "#27407f"}, {"#7d9bf5", "#8fa9f7"}, {"#1d3fbf", "#c3d0fb"}, {"#a6b8fa", "#3c5bb8"}, {"#3f63e0", "#6f8df0"}, {"#0046e6", "#dfe6fd"},
}

// Reds is the palette index of the first of four reds. Blues is the palette index of
// the first of six blues.
const Reds, Blues = 24, 28

// colours of text, grid lines and background: for light, then for dark mode
var surroundings = [2][3]string{{"#1f2328", "#d0d7de", "#ffffff"}, {"#e6edf3", "#3d444d", "#0d1117"}}

type drawing struct {
	strings.Builder
	height float64
}

func (d *drawing) rect(x, y, w, h float64, class, title string) {
	fmt.Fprintf(d, `<rect x="%s" y="%s" width="%s" height="%s" class="%s">`, px(x), px(y), px(max(w, 0)), px(h), class)
	if title != "" {
		fmt.Fprintf(d, "<title>%s</title>", escape(title))
	}
	d.WriteString("</rect>\n")
}

func (d *drawing) line(x1, y1, x2, y2 float64, class string) {
	fmt.Fprintf(d, `<line x1="%s" y1="%s" x2="%s" y2="%s" class="%s"/>`+"\n", px(x1), px(y1), px(x2), px(y2), class)
}

// text writes a text at a base line. anchor is "start", "middle" or "end": the part of
// the text that is at x.
func (d *drawing) text(x, y float64, anchor, class, text string) {
	fmt.Fprintf(d, `<text x="%s" y="%s" text-anchor="%s" class="%s">%s</text>`+"\n", px(x), px(y), anchor, class, escape(text))
}

func (d *drawing) finish(title string) string {
	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %s" width="%d" height="%s" role="img" aria-label="%s">`+"\n<style>\n",
		width, px(d.height), width, px(d.height), escape(title))
	b.WriteString("text{font:12px system-ui,'Segoe UI',Helvetica,Arial,sans-serif}.h{font-size:15px;font-weight:600}.n{font-size:11px}.w{stroke-width:1.5}.c{fill:none;stroke-width:2}\n")
	for mode, colours := range surroundings {
		if mode == 1 {
			b.WriteString("@media (prefers-color-scheme:dark){\n")
		}
		fmt.Fprintf(&b, "text{fill:%s}.g{stroke:%s}.w{stroke:%s}.b{fill:%s}.s{stroke:%s;stroke-width:1}\n",
			colours[0], colours[1], colours[0], colours[2], colours[2])
		for i, c := range palette {
			fmt.Fprintf(&b, ".f%d{fill:%s}.l%d{stroke:%s}.t%d{fill:%s}\n", i, c[mode], i, c[mode], i, textColour(c[mode]))
		}
		if mode == 1 {
			b.WriteString("}\n")
		}
	}
	fmt.Fprintf(&b, "</style>\n<rect width=\"%d\" height=\"%s\" class=\"b\"/>\n", width, px(d.height))
	b.WriteString(d.String())
	b.WriteString("</svg>\n")
	return b.String()
}

// textColour returns a readable colour for text on a coloured part. The luma weights
// are those of ITU-R BT.709.
func textColour(colour string) string {
	rgb, _ := strconv.ParseUint(colour[1:], 16, 32) // parsing cannot fail: all palette colours are valid
	luma := 0.2126*float64(rgb>>16) + 0.7152*float64(rgb>>8&0xff) + 0.0722*float64(rgb&0xff)
	if luma > 140 {
		return "#000000"
	}
	return "#ffffff"
}

func (d *drawing) heading(title, note string) float64 {
	lineLimit := int(math.Floor((width - 2*margin) / smallWide))
	d.text(margin, 26, "start", "h", title)
	y, line := 45.0, ""
	for _, word := range append(strings.Fields(note), "") {
		if word == "" || len([]rune(line))+1+len([]rune(word)) > lineLimit {
			if line != "" {
				d.text(margin, y, "start", "n", line)
				y += 15
			}
			line = ""
		}
		line = strings.TrimSpace(line + " " + word)
	}
	return y - 3
}

func (d *drawing) legend(names []string, class func(i int) string, y float64) float64 {
	x := float64(margin)
	for i, name := range names {
		wide := 16 + smallWide*float64(len([]rune(name))) + 14
		if x+wide > width-margin && x > margin {
			x, y = margin, y+lineHigh
		}
		d.rect(x, y, 11, 11, class(i), "")
		d.text(x+16, y+10, "start", "n", name)
		x += wide
	}
	return y + lineHigh + 4
}

func px(v float64) string { return strconv.FormatFloat(math.Round(v*10)/10, 'f', -1, 64) }

func escape(s string) string {
	var b strings.Builder
	_ = xml.EscapeText(&b, []byte(s)) // cannot fail: a strings.Builder accepts every write
	return b.String()
}

// Number formats a value with three significant digits, or as a whole number from
// 1,000 on.
func Number(v float64) string {
	digits := 0
	if a := math.Abs(v); a > 0 && a < 1000 {
		digits = max(0, 2-int(math.Floor(math.Log10(a))))
	}
	s := strconv.FormatFloat(v, 'f', min(digits, 6), 64)
	if strings.Contains(s, ".") {
		s = strings.TrimRight(strings.TrimRight(s, "0"), ".")
	}
	whole, rest, _ := strings.Cut(s, ".")
	for i := len(whole) - 3; i > 0 && whole[i-1] != '-'; i -= 3 {
		whole = whole[:i] + "," + whole[i:]
	}
	if rest != "" {
		whole += "." + rest
	}
	return whole
}

// SPDX-License-Identifier: Apache-2.0

package chart

import (
	"encoding/xml"
	"errors"
	"io"
	"math"
	"strings"
	"testing"
)

func samples() map[string]interface{ SVG() string } {
	return map[string]interface{ SVG() string }{
		"bars": &Bars{Title: "A & <B>", Note: strings.Repeat("a long note ", 40), Unit: "Mframes/s", Series: []string{"one", "two"}, Groups: []Group{
			{"64", []Bar{{Series: 0, Median: 12.5, Min: 4.7, Max: 12.6}, {Series: 1, Missing: "cannot start: <no device>"}}},
			{"1500", []Bar{{Series: 0, Median: 3, Min: 3, Max: 3}, {Series: 1, Median: 2, Min: 1.5, Max: 2.2, Note: "(one 1.5×)"}}},
		}},
		"stack": &Stack{Title: "S", Unit: "µs", Names: []string{"x", "y"}, Colours: []int{0, Reds}, Bars: []StackBar{{"a", []Part{{"x", 3}, {"y", 5}}}}},
		"lines": &Lines{Title: "L", XUnit: "flows", YUnit: "ns", XLog: true, YLog: true, Lines: []Line{{"one", []Point{{1, 20, 18, 22}, {1e6, 90, 80, 200}}}}},
		"empty": &Lines{Title: "nothing"},
		"zero":  &Bars{Title: "zero", Series: []string{"one"}, Log: true, Groups: []Group{{"g", []Bar{{}}}}},
	}
}

// Each picture is well-formed XML without NaN or infinity. Drawing it twice gives
// equal bytes.
func TestPictures(t *testing.T) {
	for name, p := range samples() {
		text := p.SVG()
		if text != p.SVG() {
			t.Errorf("%s: two pictures of the same figures differ", name)
		}
		for _, bad := range []string{"NaN", "Inf", "%!"} {
			if strings.Contains(text, bad) {
				t.Errorf("%s: has %s", name, bad)
			}
		}
		d := xml.NewDecoder(strings.NewReader(text))
		for {
			if _, err := d.Token(); errors.Is(err, io.EOF) {
				break
			} else if err != nil {
				t.Fatalf("%s: %v\n%s", name, err, text)
			}
		}
	}
}

// The width of a part in a stacked bar is proportional to the part's value.
func TestStackIsInProportion(t *testing.T) {
	x := newScale(0, 8, 0, 800, false)
	if a, b := x.position(3)-x.position(0), x.position(8)-x.position(3); math.Abs(a/b-3.0/5) > 1e-9 {
		t.Errorf("3 and 5 are %v and %v pixels wide", a, b)
	}
}

func TestScale(t *testing.T) {
	for _, c := range []struct {
		low, high float64
		log       bool
	}{{0, 191.1, false}, {0, 0.004, false}, {0, 1, false}, {0, 1e6, false}, {3, 90_000, true}, {64, 1500, true}, {5, 5, true}, {1e-7, 1e-3, true}} {
		s := newScale(c.low, c.high, 0, 100, c.log)
		if s.high < c.high*0.999 || s.low > c.low*1.001 {
			t.Errorf("%v: covers %v to %v only", c, s.low, s.high)
		}
		if len(s.ticks) < 2 || len(s.ticks) > 12 {
			t.Errorf("%v: ticks %v", c, s.ticks)
		}
		if at := s.position(s.high); math.Abs(at-100) > 1e-6 {
			t.Errorf("%v: the greatest is at %v", c, at)
		}
	}
}

func TestNumber(t *testing.T) {
	for v, want := range map[float64]string{0: "0", 12.54: "12.5", 191.071: "191", 1234567: "1,234,567", 0.01234: "0.0123", -1234: "-1,234", -123: "-123", 100: "100", 2.5: "2.5", 999.9: "1,000"} {
		if got := Number(v); got != want {
			t.Errorf("%v: %q, want %q", v, got, want)
		}
	}
}

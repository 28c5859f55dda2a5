// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"weft/bench/traffic"
)

// progressLine prints the result of each interval of a running measurement. On a terminal, each result
// overwrites the one before.
type progressLine struct {
	out      io.Writer
	terminal bool
	bits     bool    // shows bits as well as frames
	shortest float64 // in seconds; a shorter interval, which ends a measurement, is not shown
	shown    int
}

func (p *progressLine) tell(i traffic.Interval, measured bool) {
	if i.To-i.From < p.shortest {
		return
	}
	text := fmt.Sprintf("%6.1f to %5.1f s  %s/s", i.From, i.To, scaled(i.FramesPerSecond(), ""))
	if !measured {
		text = fmt.Sprintf("warm-up, %.1f s left  %s/s", max(-i.To, 0), scaled(i.FramesPerSecond(), ""))
	}
	if p.bits {
		text += fmt.Sprintf("  %sbit/s", scaled(i.BitsPerSecond(), " "))
	}
	if !p.terminal {
		fmt.Fprintln(p.out, text)
		return
	}
	fmt.Fprintf(p.out, "\r%s%s", text, strings.Repeat(" ", max(0, p.shown-len(text))))
	p.shown = len(text)
}

func (p *progressLine) clear() {
	if p.shown > 0 {
		fmt.Fprintf(p.out, "\r%s\r", strings.Repeat(" ", p.shown))
	}
}

func scaled(v float64, blank string) string {
	prefixes := []string{"", "k", "M", "G", "T"}
	i := 0
	for v >= 999.5 && i < len(prefixes)-1 {
		v, i = v/1000, i+1
	}
	precision := 0
	if v < 9.995 && (i > 0 || v != float64(int(v))) {
		precision = 2
	} else if v < 99.95 && (i > 0 || v != float64(int(v))) {
		precision = 1
	}
	return fmt.Sprintf("%.*f%s%s", precision, v, blank, prefixes[i])
}

// printTraffic prints the result of a finished measurement as text.
func printTraffic(out io.Writer, r *traffic.Result) error {
	s := &r.Spec
	b := &strings.Builder{}
	what := map[string]string{traffic.Stream: "", traffic.Request: ", requests", traffic.Connect: ", a connection a request"}[s.Mode]
	if s.Reverse {
		what += ", the server sends"
	}
	fmt.Fprintf(b, "%s to %s%s, streams %d, sizes %s, %.2f s", s.Protocol, r.Server, what, s.Streams, s.Sizes, r.Seconds)
	if s.Warmup > 0 {
		fmt.Fprintf(b, " after a warm-up of %g s", s.Warmup)
	}
	fmt.Fprintln(b)
	t := tabwriter.NewWriter(b, 0, 0, 2, ' ', tabwriter.AlignRight)
	row := func(name string, n traffic.Totals, bits, frames float64) {
		count, rate := fmt.Sprint(n.Frames), scaled(frames, "")+"/s"
		if s.Protocol == traffic.TCP && name == "received" {
			count, rate = "-", "-" // over TCP the receiver cannot count the sender's writes
		}
		fmt.Fprintf(t, "%s\t%s\t%d\t%sbit/s\t%s\t\n", name, count, n.Bytes, scaled(bits, " "), rate)
	}
	unit := map[bool]string{true: "frames", false: "requests"}[s.Mode == traffic.Stream]
	fmt.Fprintf(t, "\t%s\tbytes\t\t\t\n", unit)
	row("sent", r.Sent, r.SentBitsPerSecond, r.SentFramesPerSecond)
	row(map[bool]string{true: "received", false: "answered"}[s.Mode == traffic.Stream], r.Received, r.ReceivedBitsPerSecond, r.ReceivedFramesPerSecond)
	t.Flush()
	printLosses(b, r)
	if l := r.Latency; l != nil {
		fmt.Fprintf(b, "%s, µs: min %.1f, mean %.1f, 50 %% %.1f, 90 %% %.1f, 99 %% %.1f, 99.9 %% %.1f, max %.1f",
			l.Kind, l.Min, l.Mean, l.P50, l.P90, l.P99, l.P999, l.Max)
		if l.ClockError > 0 {
			fmt.Fprintf(b, " (clocks agree within %.1f)", l.ClockError)
		}
		fmt.Fprintln(b)
	}
	share := func(c traffic.CPU) string {
		return fmt.Sprintf("%.0f %% user + %.0f %% system", 100*c.User/r.Seconds, 100*c.System/r.Seconds)
	}
	fmt.Fprintf(b, "of a core: client %s, server %s\n", share(r.Local), share(r.Remote))
	_, err := io.WriteString(out, b.String())
	return err
}

func printLosses(b *strings.Builder, r *traffic.Result) {
	var sum traffic.StreamResult
	for _, st := range r.Streams {
		sum.Lost += st.Lost
		sum.Duplicates += st.Duplicates
		sum.Reordered += st.Reordered
		sum.Late += st.Late
		sum.Distance = max(sum.Distance, st.Distance)
		sum.JitterUS = max(sum.JitterUS, st.JitterUS)
		sum.Retransmits += st.Retransmits
	}
	if r.Spec.Protocol == traffic.TCP {
		fmt.Fprintf(b, "segments sent again: %d\n", sum.Retransmits)
		return
	}
	fmt.Fprintf(b, "lost %d", sum.Lost)
	if r.Sent.Frames > 0 {
		fmt.Fprintf(b, " (%.3g %%)", 100*float64(sum.Lost)/float64(r.Sent.Frames))
	}
	if r.SocketDrops > 0 {
		fmt.Fprintf(b, ", of them %d at the receiver's socket", min(r.SocketDrops, sum.Lost))
	}
	if r.Spec.Mode != traffic.Stream {
		fmt.Fprintf(b, ", answered too late or twice %d\n", sum.Late)
		return
	}
	fmt.Fprintf(b, ", duplicates %d, reordered %d", sum.Duplicates, sum.Reordered)
	if sum.Reordered > 0 {
		fmt.Fprintf(b, " (by at most %d)", sum.Distance)
	}
	if sum.Late > 0 {
		fmt.Fprintf(b, ", too late to tell %d", sum.Late)
	}
	fmt.Fprintf(b, ", jitter %.1f µs\n", sum.JitterUS)
}

// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"weft/api"
	"weft/cmd/exit"
)

const topHelp = `Shows the present activity of the switch: workers (share of busy time, time a frame,
frames a batch, hits of their caches), the ports, drops by reason, and the hottest
megaflows. WORKER is the share of a worker's time that went into the frames received on
a port; the port with the largest share comes first. Frames from tunnels count for their
uplink. WEIGHT is there if a port has weight=. All numbers are rates over the interval. Ctrl-C ends it. If the
output is no terminal, the intervals are printed one after the other and lines are
not truncated.`

const (
	// topFlows is the number of hottest megaflows that weft top requests.
	topFlows = 40
	// leastInterval is the shortest allowed interval between two requests to the
	// daemon.
	leastInterval = 100 * time.Millisecond
)

func (c *command) topVerb() *cobra.Command {
	verb := &cobra.Command{
		Use: "top", Short: "watch workers, ports, drops and the hottest flows", Long: topHelp, Args: words(0, 0),
	}
	once := verb.Flags().Bool("once", false, "print one interval and end")
	interval := verb.Flags().Duration("interval", time.Second, "time between two updates")
	verb.RunE = func(*cobra.Command, []string) error {
		if *interval < leastInterval || *interval > time.Minute {
			return exit.Usagef("--interval %v: expected %v to %v", *interval, leastInterval, time.Minute)
		}
		return c.top(*interval, *once)
	}
	return verb
}

func (c *command) top(interval time.Duration, single bool) error {
	client, err := c.client()
	if err != nil {
		return err
	}
	before, err := client.Show()
	if err != nil {
		return err
	}
	ctx, stop := untilSignal()
	defer stop()
	began := time.Now()
	live := !single && !c.json && isTerminal(c.out)
	if live {
		fmt.Fprint(c.out, "\x1b[?25l\x1b[2J") // hides the cursor and clears the screen
		defer fmt.Fprint(c.out, "\x1b[?25h\n")
	}
	for {
		hot, err := watch(ctx, client, interval)
		if err != nil || ctx.Err() != nil {
			return err
		}
		after, err := client.Show()
		if err != nil {
			return err
		}
		now := time.Now()
		view := topOf(&before, &after, hot, now.Sub(began).Seconds())
		before, began = after, now
		if err := c.printTop(view, live, single); err != nil || single {
			return err
		}
	}
}

func watch(ctx context.Context, client *api.Client, interval time.Duration) ([]api.Hot, error) {
	type answer struct {
		hot []api.Hot
		err error
	}
	done := make(chan answer, 1)
	go func() {
		hot, err := client.Hottest(topFlows, interval)
		done <- answer{hot, err}
	}()
	select {
	case a := <-done:
		return a.hot, a.err
	case <-ctx.Done():
		return nil, nil
	}
}

func (c *command) printTop(view *topView, live, single bool) error {
	switch {
	case c.json && single:
		return c.printJSON(view)
	case c.json:
		return c.printLine(view)
	}
	width, height := terminalSize(c.out)
	lines := view.lines(width, height)
	if !live {
		if !single {
			lines = append(lines, "")
		}
		_, err := fmt.Fprintln(c.out, strings.Join(lines, "\n"))
		return err
	}
	// Each line clears the rest of its row. To clear the whole screen first would make it flicker.
	_, err := fmt.Fprint(c.out, "\x1b[H"+strings.Join(lines, "\x1b[K\r\n")+"\x1b[K\x1b[J")
	return err
}

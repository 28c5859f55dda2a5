// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"weft/api"
	"weft/cmd/exit"
	"weft/internal/safepath"
)

const captureHelp = `Shows the frames that a port receives and sends, or with drops the dropped frames.
Each frame has its verdict: its outputs, or the reason of the drop.

Without -w it prints a line for each frame. With -w it writes pcapng for Wireshark:
interfaces are ports, and the comment of a packet has the verdict. An uplink shows
frames with the tunnel's headers, a tunnel port without. A capture never delays
traffic: it counts the frames that it misses. It ends after -c frames, or with
Ctrl-C.`

func (c *command) captureVerb() *cobra.Command {
	var file string
	var r api.CaptureRequest
	verb := &cobra.Command{
		Use: "capture PORT|drops", Short: "show the frames of a port, or dropped frames, as pcapng or a line each",
		Long: captureHelp, Args: words(1, 1),
	}
	verb.Flags().StringVarP(&file, "write", "w", "", "write pcapng to a file, or - for standard output")
	verb.Flags().IntVarP(&r.Limit, "count", "c", 0, "end after this number of frames; 0: at Ctrl-C")
	verb.Flags().IntVarP(&r.Snap, "snap", "s", 0, "capture at most this number of bytes of a frame; 0: all")
	verb.Flags().StringVar(&r.Port, "port", "", "with drops: only this port's drops")
	verb.RunE = func(cmd *cobra.Command, args []string) error {
		switch {
		case r.Limit < 0 || r.Snap < 0:
			return exit.Usagef("capture: -c and -s expect a number of 1 or more")
		case file != "" && c.json:
			return exit.Usagef("-w and --json: expected one of them")
		case args[0] == "drops":
			r.Drops = true
		case r.Port != "":
			return exit.Usagef("--port: expected with drops alone")
		default:
			r.Port = args[0]
		}
		return c.capture(cmd.ErrOrStderr(), r, file)
	}
	return verb
}

// untilSignal returns a context that ends when the user presses Ctrl-C or the process
// gets SIGTERM.
func untilSignal() (context.Context, context.CancelFunc) {
	return signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
}

func (c *command) capture(errs io.Writer, r api.CaptureRequest, file string) error {
	client, err := c.client()
	if err != nil {
		return err
	}
	write, finish := c.captureLine, func() error { return nil }
	begin := func() error { return nil }
	if file != "" {
		out, closeFile, err := c.captureFile(file)
		if err != nil {
			return err
		}
		defer closeFile()
		begin = func() error {
			if err := empty(out); err != nil {
				return err
			}
			p, err := newPcapng(out)
			if err == nil {
				write, finish = p.frame, p.close
			}
			return err
		}
	}
	ctx, stop := untilSignal()
	defer stop()
	frames, lost := 0, uint64(0)
	var began bool
	var beginErr error
	err = client.Capture(ctx, r, func() {
		began = true
		fmt.Fprintln(errs, "capturing; Ctrl-C ends it")
		if beginErr = begin(); beginErr != nil {
			stop()
		}
	}, func(f *api.Captured) error {
		frames++
		lost = f.Lost
		return write(f)
	})
	if err == nil {
		err = beginErr
	}
	if err == nil {
		err = finish()
	}
	if began {
		fmt.Fprintf(errs, "%d frames captured, %d lost\n", frames, lost)
	}
	return err
}

// captureFile opens the output file of a capture. It does not truncate the file yet, because the daemon
// may still refuse the capture.
func (c *command) captureFile(name string) (out io.Writer, closeFile func(), err error) {
	if name == "-" {
		return c.out, func() {}, nil
	}
	f, err := safepath.OpenFile(name, os.O_WRONLY|os.O_CREATE, 0o666)
	if err != nil {
		return nil, nil, exit.Usagef("%v; expected a file to write to, or - for standard output", err)
	}
	return f, func() { f.Close() }, nil
}

func empty(out io.Writer) error {
	f, ok := out.(*os.File)
	if !ok {
		return nil
	}
	if err := f.Truncate(0); err != nil && !errors.Is(err, syscall.EINVAL) {
		return err
	}
	return nil
}

func (c *command) printLine(v any) error { return json.NewEncoder(c.out).Encode(v) }

const clock = "15:04:05.000000"

func (c *command) captureLine(f *api.Captured) error {
	if c.json {
		return c.printLine(f)
	}
	flow := f.Flow
	if flow == "" {
		flow = fmt.Sprintf("%x", f.Data[:min(len(f.Data), 14)])
	}
	_, err := fmt.Fprintf(c.out, "%s %s, %d bytes, %s\n", f.Time.Format(clock), comment(f), f.Len, flow)
	return err
}

// traceLive prints how the switch processes the frames that match. It ends after "limit" frames (0: no
// limit), or when the user presses Ctrl-C.
func (c *command) traceLive(errs io.Writer, match string, limit int) error {
	client, err := c.client()
	if err != nil {
		return err
	}
	ctx, stop := untilSignal()
	defer stop()
	first := true
	return client.TraceLive(ctx, match, limit, func() { fmt.Fprintln(errs, "waiting for a frame; Ctrl-C ends it") },
		func(f *api.Captured) error {
			if c.json {
				return c.printLine(f)
			}
			if !first {
				fmt.Fprintln(c.out)
			}
			first = false
			return printLive(c.out, f)
		})
}

func printLive(out io.Writer, f *api.Captured) error {
	var b strings.Builder
	t := f.Trace
	if t == nil {
		t = &api.LiveTrace{}
	}
	fmt.Fprintf(&b, "Frame of %d bytes from port %s at %s, worker %d\n", f.Len, f.InPort, f.Time.Format(clock), f.Worker)
	fmt.Fprintf(&b, "Flow: %s\n", f.Flow)
	switch t.Cache {
	case "exact":
		fmt.Fprintln(&b, "Cache: exact match")
	case "megaflow":
		fmt.Fprintf(&b, "Cache: megaflow, masks searched: %d\n", t.Masks)
	case "control":
		fmt.Fprintln(&b, "Cache: none; control executed the frame by itself")
	default:
		fmt.Fprintln(&b, "Cache: none")
	}
	if f.HeldUS > 0 {
		fmt.Fprintf(&b, "Held: %.0f µs since it missed\n", f.HeldUS)
	}
	if t.Megaflow != "" {
		fmt.Fprintf(&b, "Megaflow: %s\n", t.Megaflow)
	}
	fmt.Fprintf(&b, "Datapath actions: %s\n", t.Actions)
	var stages []string
	total := uint64(0)
	for _, s := range t.Stages {
		if s.NS != 0 {
			stages = append(stages, fmt.Sprintf("%s %d", s.Name, s.NS))
			total += uint64(s.NS)
		}
	}
	fmt.Fprintf(&b, "Stages, ns for a batch of %d: %s, all %d\n", t.Frames, strings.Join(stages, ", "), total)
	fmt.Fprintf(&b, "Verdict: %s\n", verdict(&api.Captured{
		Kind: f.Kind, Verdict: f.Verdict, Reason: f.Reason, Outputs: f.Outputs, OutputCount: f.OutputCount}))
	_, err := io.WriteString(out, b.String())
	return err
}

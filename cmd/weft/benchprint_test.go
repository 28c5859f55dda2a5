// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"io"
	"log/slog"
	"regexp"
	"strings"
	"testing"

	"weft/bench/traffic"
)

// "weft bench client" prints what it measures, the sent and received amounts, and the other results of each
// kind of measurement. The server runs on this machine. In the expected text, \d stands for digits that
// depend on the speed of the machine.
func TestBenchClientPrints(t *testing.T) {
	l, err := traffic.Listen("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error)
	server := &traffic.Server{Log: slog.New(slog.NewTextHandler(io.Discard, nil))}
	go func() { ended <- server.Serve(ctx, l) }()
	defer func() {
		stop()
		l.Close()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}()
	const cpu = "of a core: client"
	for options, want := range map[string][]string{
		"-k 20 -l 1K -i 0":                    {"tcp to 127.0.0.1:", "streams 1, sizes 1024,", "sent 20 20480", "received - 20480", "segments sent again: ", cpu},
		"-k 10 -l 1K -R -P 2 -i 0":            {"the server sends, streams 2", "sent 20 20480", "received - 20480"},
		"-u -k 100 --rate 10000 -i 0":         {"udp to ", "sizes 1400", "sent 100 140000", "received 100 140000", "lost 0 (0 %), duplicates 0, reordered 0, jitter ", "one way, µs: min ", cpu},
		"-u -k 120 -P 2 -b 20M -i 0":          {"streams 2", "sent 240 336000", "received 240 336000"},
		"-u -k 120 --size imix -b 9M -i 0":    {"sizes 22:7,548:4,1472:1", "sent 120 38180", "received 120 38180"},
		"-u -k 9 --size 1514 -R -i 0":         {"the server sends", "sizes 1472", "sent 9 13248"},
		"--rr -k 50 -l 100 -i 0":              {"tcp to ", ", requests, streams 1", "sent 50 5000", "answered 50 5000", "round trip, µs: min ", "99.9 %"},
		"-u --rr -k 50 --response 300 -i 0":   {"udp to ", ", requests", `sent \d+ \d+ `, `answered \d+ \d+ `, `lost \d+ \([0-9.e-]+ %\), answered too late or twice \d+`},
		"--crr -k 20 -P 2 -i 0":               {", a connection a request, streams 2", "sent 40 2560", "answered 40 2560", "connection, µs: min "},
		"-u --rate 1000 -t 0.3 -O 0.2 -i 0.1": {`warm-up, 0\.\d`, `\d\.\d to \d\.\d s `, "bit/s", "after a warm-up of 0.2 s", `sent \d+ \d+ `},
	} {
		out, errs, code := weft("", append([]string{"bench", "client", l.Addr().String()}, strings.Fields(options)...)...)
		if code != 0 || errs != "" {
			t.Errorf("%s: %d %q", options, code, errs)
			continue
		}
		text := strings.Join(strings.Fields(out), " ")
		for _, words := range want {
			if strings.Contains(words, `\d`) && regexp.MustCompile(words).MatchString(text) {
				continue
			}
			if !strings.Contains(text, words) {
				t.Errorf("%s: %q is not in\n%s", options, words, out)
			}
		}
	}
}

// On a terminal, a running measurement has one line, which each result overwrites. The line is erased at the
// end.
func TestProgressLine(t *testing.T) {
	var b strings.Builder
	line := progressLine{out: &b, terminal: true, bits: true, shortest: 0.05}
	line.tell(traffic.Interval{From: -1, To: -0.5, Frames: 500, Bytes: 50_000}, false)
	line.tell(traffic.Interval{From: 0, To: 1, Frames: 2000, Bytes: 125_000}, true)
	line.tell(traffic.Interval{From: 1, To: 1.0001, Frames: 1, Bytes: 64}, true) // too short to be shown
	line.clear()
	lines := strings.Split(b.String(), "\r")
	if len(lines) != 5 || lines[1] != "warm-up, 0.5 s left  1.00k/s  800 kbit/s" || strings.TrimSpace(lines[2]) != "0.0 to   1.0 s  2.00k/s  1.00 Mbit/s" ||
		strings.TrimSpace(lines[3]) != "" || len(lines[3]) < len("0.0 to   1.0 s  2.00k/s  1.00 Mbit/s") || strings.Contains(b.String(), "\n") {
		t.Errorf("%q", b.String())
	}
}

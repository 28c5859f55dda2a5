// SPDX-License-Identifier: Apache-2.0

package main

import (
	"path/filepath"
	"strings"
	"testing"

	"weft/cmd/exit"
)

// Each verb of bench refuses wrong arguments and options before it measures. The error is one line that names
// the wrong word.
func TestBenchWrongWords(t *testing.T) {
	for line, word := range map[string]string{
		"frob": "frob",

		"server frob":                        "frob is one word too many",
		"server --frob":                      "--frob",
		"server -p x":                        ": x: expected a",
		"server -p 99999999":                 "99999999",
		"server --listen nowhere":            "nowhere",
		"server --listen vsock:x":            "vsock:x",
		"server --listen unix:/nosuchdir/s":  "/nosuchdir/s",
		"server -p 1 --listen unix:/x":       "-p and --listen",
		"server --raw nosuchdevice":          "--raw: nosuchdevice",
		"server --raw /nosuchdir/guest.sock": "/nosuchdir/guest.sock",
		"client":                             "HOST",
		"client h frob":                      "frob is one word too many",
		"client h --frob":                    "--frob",
		"client h -u --raw lo":               "-u and --raw",
		"client h --rr --crr":                "--rr and --crr",
		"client h -l 10 -u --size 64":        "-l and --size",
		"client h -i -1":                     "-i: -1",
		"client h -i x":                      ": x: expected a",
		"client h -b fast":                   "-b: \"fast\"",
		"client h -b -1":                     "-b: \"-1\"",
		"client h -l long":                   "-l: \"long\"",
		"client h -l 2M":                     "2097152",
		"client h -w wide":                   "-w: \"wide\"",
		"client h -w 2G":                     "socket buffer of 2147483648 bytes",
		"client h -u --size 64:7,frob":       "--size: ",
		"client h --size 64":                 "sizes of frames",
		"client h -u --size 1":               "1",
		"client h --raw nosuchdevice":        "--raw: nosuchdevice",
		"client h --rate -5":                 "rate",
		"client h --rate 5 -b 1M":            "a rate in bits and one in frames",
		"client h --rr -b 1M":                "requests a second, not in bits",
		"client h --rr -R":                   "reversed",
		"client h -u --crr":                  "TCP",
		"client h -P 0x":                     "0x",
		"client h -P 1000":                   "1000 streams",
		"client h -t 0":                      "0 seconds",
		"client h -t -3":                     "-3 seconds",
		"client h -O -3":                     "-3 seconds",
		"client h --flows 5":                 "flows are of raw frames",
		"client h --rr --response 5000000":   "5000000 bytes",
		"client h -k x":                      ": x: expected a",
	} {
		out, errs, code := weft("", append([]string{"bench"}, strings.Fields(line)...)...)
		if code == 0 || !strings.Contains(errs, word) || strings.Count(errs, "\n") != 1 || !strings.HasPrefix(errs, "weft: ") || out != "" {
			t.Errorf("weft bench %s: %d %q %q, want %q", line, code, errs, out, word)
		}
		if refused := !strings.Contains(line, "/nosuch"); refused && code != exit.Input {
			t.Errorf("weft bench %s: exit code %d", line, code)
		}
	}
}

// The verbs for ports refuse wrong arguments before they send a request to the daemon. The error names the
// wrong word.
func TestPortsWrongWords(t *testing.T) {
	for line, word := range map[string]string{
		"add-port":                 "NAME",
		"add-port p type=tap frob": "frob: expected KEY=VALUE",
		"add-port p --frob":        "--frob",
		"del-port":                 "NAME",
		"del-port a b":             "b is one word too many",
		"dump-ports a b":           "b is one word too many",
		"dump-ports --frob":        "--frob",
	} {
		dead := filepath.Join(t.TempDir(), "none")
		out, errs, code := weft("", append([]string{"--socket", dead}, strings.Fields(line)...)...)
		if code != exit.Input || !strings.Contains(errs, word) || strings.Count(errs, "\n") != 1 || out != "" {
			t.Errorf("weft %s: %d %q %q", line, code, errs, out)
		}
	}
}

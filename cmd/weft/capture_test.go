// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/gopacket/pcapgo"

	"weft/api"
	"weft/cmd/exit"
)

var capturedFrames = []api.Captured{
	{Time: time.Unix(1700000000, 123456789), Kind: "in", Port: "vm1", InPort: "vm1", Verdict: "sent", Outputs: []string{"vm2", "vm3"}, OutputCount: 3,
		Len: 1400, Data: []byte{1, 2, 3, 4, 5}, Flow: "udp"},
	{Time: time.Unix(1700000001, 0), Kind: "out", Port: "vm2", InPort: "vm1", Verdict: "dropped", Reason: "tx-full", Len: 4, Data: []byte{9, 8, 7, 6}},
	{Time: time.Unix(1700000002, 5), Kind: "drop", Port: "vm1", InPort: "vm1", Verdict: "dropped", Reason: "table-miss", HeldUS: 12, Data: []byte{}, Lost: 3},
}

func streaming[T any](t *testing.T, query *string, values []T) string {
	return serve(t, func(w http.ResponseWriter, r *http.Request) {
		*query = r.URL.RequestURI()
		for _, v := range values {
			_ = json.NewEncoder(w).Encode(v)
		}
	})
}

// A pcapng reader that is not part of Weft reads the frames that weft capture writes.
func TestPcapng(t *testing.T) {
	var asked string
	t.Setenv("WEFT_SOCKET", streaming(t, &asked, capturedFrames))
	file := filepath.Join(t.TempDir(), "x.pcapng")
	out, errs, code := weft("", "capture", "vm1", "-w", file, "-c", "3", "-s", "100")
	if code != 0 || out != "" || !strings.Contains(errs, "3 frames captured, 3 lost") || asked != "/v1/capture?limit=3&port=vm1&snap=100" {
		t.Fatalf("%d %q %q %s", code, out, errs, asked)
	}
	written, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	stdout, _, _ := weft("", "capture", "drops", "--port", "vm1", "-w", "-")
	if stdout != string(written) || asked != "/v1/capture?drops=true&port=vm1" {
		t.Errorf("%d bytes to standard output, %d to a file; %s", len(stdout), len(written), asked)
	}
	r, err := pcapgo.NewNgReader(bytes.NewReader(written), pcapgo.DefaultNgReaderOptions)
	if err != nil {
		t.Fatal(err)
	}
	names := []string{"vm1", "vm2", "vm1"}
	for i, f := range capturedFrames {
		data, info, err := r.ReadPacketData()
		if err != nil {
			t.Fatal(err)
		}
		in, err := r.Interface(info.InterfaceIndex)
		if err != nil || in.Name != names[i] || !bytes.Equal(data, f.Data) || info.Length != f.Len || !info.Timestamp.Equal(f.Time) {
			t.Errorf("frame %d: %x %+v %+v %v", i, data, info, in, err)
		}
		if !bytes.Contains(written, []byte(comment(&f))) {
			t.Errorf("no comment %q", comment(&f))
		}
	}
	if _, _, err := r.ReadPacketData(); err == nil {
		t.Error("one more frame")
	}
}

func TestCaptureLines(t *testing.T) {
	var asked string
	t.Setenv("WEFT_SOCKET", streaming(t, &asked, capturedFrames))
	out, _, code := weft("", "capture", "drops")
	lines := strings.Split(strings.TrimSpace(out), "\n")
	for i, want := range []string{
		"port vm1 in: sent to vm2, vm3 and 1 more, 1400 bytes, udp",
		"port vm2 out, from port vm1: dropped: tx-full, 4 bytes, 09080706",
		"port vm1: dropped: table-miss, 12 µs after it missed, 0 bytes, ",
	} {
		if code != 0 || i >= len(lines) || !strings.Contains(lines[i]+" ", want) {
			t.Errorf("no line %q in\n%s", want, out)
		}
	}
	out, _, _ = weft("", "capture", "drops", "--json")
	var f api.Captured
	if err := json.NewDecoder(strings.NewReader(out)).Decode(&f); err != nil || f.Len != 1400 || strings.Count(out, "\n") != 3 {
		t.Errorf("%v\n%s", err, out)
	}
	for _, args := range [][]string{{"capture"}, {"capture", "p", "--port", "q"}, {"capture", "p", "-c", "-1"}, {"capture", "p", "-w", "/no/such/file"},
		{"trace", "--live", "-c", "-1"}, {"trace"}} {
		if _, errs, code := weft("", args...); code != exit.Input || strings.Count(errs, "\n") != 1 {
			t.Errorf("%v: %d %q", args, code, errs)
		}
	}
}

func TestLiveTraceText(t *testing.T) {
	var asked string
	f := capturedFrames[0]
	f.Kind, f.HeldUS, f.Worker = "trace", 7, 1
	f.Trace = &api.LiveTrace{Cache: "megaflow", Masks: 3, Megaflow: "in_port=vm1", Actions: "vm2,vm3", Frames: 4,
		Stages: []api.StageTime{{Name: "receive", NS: 100}, {Name: "parse"}, {Name: "send", NS: 50}}}
	t.Setenv("WEFT_SOCKET", streaming(t, &asked, []api.Captured{f}))
	out, _, code := weft("", "trace", "--live", "udp")
	if code != 0 || asked != "/v1/trace/live?limit=1&match=udp" {
		t.Errorf("%d %s", code, asked)
	}
	for _, line := range []string{
		"Frame of 1400 bytes from port vm1 at ", "Flow: udp\n", "Cache: megaflow, masks searched: 3\n", "Held: 7 µs since it missed\n",
		"Megaflow: in_port=vm1\n", "Datapath actions: vm2,vm3\n", "Stages, ns for a batch of 4: receive 100, send 50, all 150\n",
		"Verdict: sent to vm2, vm3 and 1 more\n",
	} {
		if !strings.Contains(out, line) {
			t.Errorf("no %q in\n%s", line, out)
		}
	}
}

// If the daemon refuses a capture, weft leaves the output file unchanged and does not print a number of
// frames.
func TestRefusedCaptureKeepsTheFile(t *testing.T) {
	t.Setenv("WEFT_SOCKET", serve(t, func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusBadRequest)
		_ = json.NewEncoder(w).Encode(api.Error{Error: "vm9: no such port"})
	}))
	file := filepath.Join(t.TempDir(), "kept")
	if err := os.WriteFile(file, []byte("kept"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, errs, code := weft("", "capture", "vm9", "-w", file)
	if kept, _ := os.ReadFile(file); string(kept) != "kept" || errs != "weft: vm9: no such port\n" || code != exit.Input {
		t.Errorf("%q in the file; %d %q", kept, code, errs)
	}
	// A successful capture overwrites the whole output file.
	var asked string
	t.Setenv("WEFT_SOCKET", streaming(t, &asked, capturedFrames[:0]))
	_, _, code = weft("", "capture", "vm1", "-w", file)
	if now, _ := os.ReadFile(file); code != 0 || !bytes.HasPrefix(now, []byte{0x0a, 0x0d, 0x0d, 0x0a}) {
		t.Errorf("%d, %q in the file", code, now)
	}
}

// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"weft/api"
	"weft/e2e/lab"
)

func background(t *testing.T, d *lab.Daemon, ready string, args ...string) *lab.Process {
	t.Helper()
	p := d.Host.Start(append([]string{d.Binary("weft"), "--socket", d.Socket}, args...)...)
	eventually(t, func() error {
		if !strings.Contains(p.Output(), ready) {
			return fmt.Errorf("weft %s: no %q in %q", strings.Join(args, " "), ready, p.Output())
		}
		return nil
	})
	return p
}

func finished(t *testing.T, p *lab.Process) string {
	t.Helper()
	if err := p.Wait(settle); err != nil {
		t.Fatalf("%s: %v: %s", p.Name, err, p.Output())
	}
	return p.Output()
}

// weft trace predicts how the switch processes a frame.
func TestTrace(t *testing.T) {
	s := newSite(t)
	s.weft.Weft("del-flows")
	s.weft.Weft("add-flow", "priority=9,in_port=guest,udp,actions=dec_ttl,resubmit(,2)")
	s.weft.Weft("add-flow", "table=2,udp,tp_dst=1003,actions=output:overlay")
	s.weft.Weft("add-flow", "table=2,priority=1,actions=drop")
	out := s.weft.Weft("trace", "in_port=guest,udp,nw_ttl=64,tp_dst=1003,nw_dst="+craftedDstIP)
	for _, line := range []string{" 0. udp,in_port=guest, priority 9\n", "    resubmit(,2)\n", " 2. udp,tp_dst=1003, priority 32768\n", "    output:overlay\n",
		"\nMegaflow: ", "\nDatapath actions: "} {
		if !strings.Contains(out, line) {
			t.Errorf("no %q in\n%s", line, out)
		}
	}
	var tr api.Trace
	s.weft.WeftJSON(&tr, "trace", "in_port=guest,udp,nw_ttl=64,tp_dst=9")
	if tr.Drop != "flow-drop" {
		t.Errorf("%+v", tr)
	}
	s.weft.WeftJSON(&tr, "trace", "in_port=guest,udp,nw_ttl=64,tp_dst=1003")
	if err := s.guest.Raw("eth0").Send(udpFrame(t, 1003, 100)); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() error {
		var list []api.Megaflow
		s.weft.WeftJSON(&list, "dump-megaflows")
		for _, m := range list {
			if m.Match == tr.Megaflow && m.Actions == tr.Actions && m.Packets == 1 {
				return nil
			}
		}
		return fmt.Errorf("no megaflow %q, %q of one frame among %+v", tr.Megaflow, tr.Actions, list)
	})
}

// A live trace shows a frame that missed the caches, and later frames.
func TestTraceLive(t *testing.T) {
	s := newSite(t)
	p := background(t, s.weft, "waiting", "trace", "--live", "-c", "2", "udp,tp_dst=1003", "--json")
	tap := s.guest.Raw("eth0")
	for _, port := range []int{1004, 1003, 1003} {
		if err := tap.Send(udpFrame(t, port, 100)); err != nil {
			t.Fatal(err)
		}
	}
	out := finished(t, p)
	_, values, _ := strings.Cut(out, "\n")
	dec := json.NewDecoder(strings.NewReader(values))
	for range 2 {
		var f api.Captured
		if err := dec.Decode(&f); err != nil {
			t.Fatalf("%v in %s", err, out)
		}
		if f.Trace == nil || f.InPort != "guest" || f.Verdict != "sent" || len(f.Outputs) != 1 || f.Outputs[0] != "overlay" ||
			!strings.Contains(f.Flow, "tp_dst=1003") || !strings.Contains(f.Trace.Megaflow, "in_port=guest") || f.Len != 100 {
			t.Errorf("%+v %+v", f, f.Trace)
		}
	}
}

// A capture has every frame of a port in both directions, with verdicts. On an uplink
// it includes tunnel headers. Other programs can read the capture.
func TestCapture(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.weft.Weft("add-flow", "priority=40000,in_port=guest,udp,tp_dst=1002,actions=drop")
	file := func(name string) string { return filepath.Join(s.lab.Dir, name+".pcapng") }
	var running []*lab.Process
	for _, what := range []string{"guest", "uplink", "drops"} {
		running = append(running, background(t, s.weft, "capturing", "capture", what, "-w", file(what)))
	}
	tap, remote := s.guest.Raw("eth0"), s.remote.Raw("eth0")
	out, dropped, in := udpFrame(t, 1001, 200), udpFrame(t, 1002, 300), udpFrame(t, 1003, 1400)
	for _, f := range [][]byte{out, dropped, out} {
		if err := tap.Send(f); err != nil {
			t.Fatal(err)
		}
	}
	if err := remote.Send(in); err != nil {
		t.Fatal(err)
	}
	if _, err := tap.Match(settle, func(f []byte) bool { return bytes.Equal(f, in) }); err != nil {
		t.Fatal(err)
	}
	if n := received(t, remote, 1001, 1001, 2); n != 2 {
		t.Fatalf("%d frames arrived", n)
	}
	captures := []struct {
		file, port string
		want       []string // length, direction (1 in, 2 out) and comment of each frame
	}{
		{"guest", "guest", []string{
			"200 1 port guest in: sent to overlay", "300 1 port guest in: dropped: flow-drop",
			"200 1 port guest in: sent to overlay", "1400 2 port guest out, from port overlay: sent",
		}},
		{"uplink", "uplink", []string{"250 2 port uplink out, from port guest: sent", "250 2 port uplink out, from port guest: sent", "1450 1 port uplink in: "}},
		{"drops", "guest", []string{"300  port guest: dropped: flow-drop"}},
	}
	for i, c := range captures {
		// a frame appears in the capture a moment after it has passed the switch
		eventually(t, func() error {
			if n := shown(file(c.file)); n < len(c.want) {
				return fmt.Errorf("%d frames in the capture of %s, want %d", n, c.file, len(c.want))
			}
			return nil
		})
		running[i].Signal(syscall.SIGINT)
		finished(t, running[i])
	}
	for _, c := range captures {
		text := s.host.Run("tshark", "-r", file(c.file), "-Y", "udp.port==1001 or udp.port==1002 or udp.port==1003",
			"-T", "fields", "-E", "separator= ", "-e", "frame.len", "-e", "frame.packet_flags_direction", "-e", "frame.comment", "-e", "frame.interface_name")
		for _, want := range c.want {
			direction := strings.NewReplacer(" 1 port", " 0x00000001 port", " 2 port", " 0x00000002 port").Replace(want)
			if !strings.Contains(text, want) && !strings.Contains(text, direction) {
				t.Errorf("capture of %s: no %q in\n%s", c.file, want, text)
			}
		}
		if !strings.Contains(text, " "+c.port+"\n") {
			t.Errorf("capture of %s: no interface %s in\n%s", c.file, c.port, text)
		}
	}
	reach(t, s.guest, remoteIP)
}

func shown(name string) (n int) {
	const enhancedPacket = 6 // block type of a captured frame (pcapng draft, section 4.3)
	text, _ := os.ReadFile(name)
	addresses := append(net.ParseIP(craftedSrcIP).To4(), net.ParseIP(craftedDstIP).To4()...)
	for len(text) >= 8 {
		kind, size := binary.LittleEndian.Uint32(text), binary.LittleEndian.Uint32(text[4:])
		if size < 12 || int(size) > len(text) {
			break
		}
		if kind == enhancedPacket && bytes.Contains(text[:size], addresses) {
			n++
		}
		text = text[size:]
	}
	return n
}

// If the engine is killed, a capture neither loses nor repeats frames.
func TestCaptureThroughEngineDeath(t *testing.T) {
	s := newSite(t)
	p := background(t, s.weft, "capturing", "capture", "guest", "-c", "9")
	tap := s.guest.Raw("eth0")
	send(t, tap, udpFrame(t, 1001, 100), 3)
	eventually(t, func() error {
		if n := strings.Count(p.Output(), "tp_dst=1001"); n != 3 {
			return fmt.Errorf("%d frames in\n%s", n, p.Output())
		}
		return nil
	})
	s.weft.KillEngine()
	reach(t, s.guest, remoteIP)
	// these pings are more frames than the guests' kernels send without them
	lab.MustPing(t, s.guest, remoteIP, 3)
	if out := finished(t, p); !strings.Contains(out, "icmp") || !strings.Contains(out, "9 frames captured, 0 lost") {
		t.Error(out)
	}
}

// replace-flows keeps unchanged flows and their counters. diff-flows shows what
// replace-flows would change. A wrong line changes nothing.
func TestReplaceAndDiffFlows(t *testing.T) {
	s := newSite(t)
	send(t, s.guest.Raw("eth0"), udpFrame(t, 1001, 100), 10)
	counted := func() error {
		if n, _ := packets(t, s.weft, "in_port=guest"); n < 10 {
			return fmt.Errorf("%d frames counted", n)
		}
		return nil
	}
	eventually(t, counted)
	file := filepath.Join(s.lab.Dir, "flows")
	write := func(text string) {
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write("in_port=guest,actions=output:overlay\npriority=5,arp,actions=drop\n")
	out, stderr, code := s.weft.TryWeft("diff-flows", file)
	if want := "-in_port=overlay actions=output:guest\n+priority=5,arp actions=drop\n"; code != 2 || out != want {
		t.Errorf("%d %s\n%s", code, stderr, out)
	}
	s.weft.Weft("replace-flows", "--bundle", file)
	if err := counted(); err != nil {
		t.Errorf("after replacing: %v", err)
	}
	if out, _, code := s.weft.TryWeft("diff-flows", file); code != 0 || out != "" {
		t.Errorf("%d %s", code, out)
	}
	before := len(flows(s.weft))
	write("ip,actions=drop\nip,actions=frob\n")
	if _, stderr, code := s.weft.TryWeft("replace-flows", file); code != 2 || !strings.Contains(stderr, "line 2") {
		t.Errorf("%d %s", code, stderr)
	}
	if n := len(flows(s.weft)); n != before {
		t.Errorf("%d flows after a refusal, %d before", n, before)
	}
}

// A monitor reports changes of ports and of flows. The event of a flow's end has the
// flow's last counters.
func TestMonitor(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	p := background(t, s.weft, "monitoring", "monitor")
	told := func(word string) {
		t.Helper()
		eventually(t, func() error {
			if !strings.Contains(p.Output(), word) {
				return fmt.Errorf("no %q in\n%s", word, p.Output())
			}
			return nil
		})
	}
	s.weft.Weft("add-flow", "priority=40000,in_port=guest,udp,tp_dst=1001,idle_timeout=1,actions=drop")
	told("flow added: ")
	send(t, s.guest.Raw("eth0"), udpFrame(t, 1001, 100), 7)
	told("flow expired (idle): ")
	told("n_packets=7, n_bytes=700")
	s.weft.Weft("mod-flows", "in_port=overlay,actions=drop")
	told("flow modified: ")
	s.weft.Weft("del-flows")
	told("flow deleted (delete): ")
	s.weft.Weft("add-port", "other", "type=tap", "dev=other")
	told("port other added, number ")
	s.host.Run("ip", "link", "set", "u0", "down")
	told("port uplink down")
	s.weft.Weft("del-port", "other")
	told("port other deleted")
	p.Signal(syscall.SIGINT)
	finished(t, p)
}

func metricsOf(t *testing.T, d *lab.Daemon) string {
	t.Helper()
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true,
		DialContext: func(context.Context, string, string) (net.Conn, error) { return net.Dial("unix", d.Socket) },
	}}
	resp, err := client.Get("http://weft/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// weft top and the metrics show the present traffic.
func TestTop(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	reach(t, s.guest, remoteIP)
	s.guest.Spawn("ping", "-i", "0.01", remoteIP)
	var view struct {
		Workers []struct {
			FramesPerS float64 `json:"frames_per_s"`
			PerBatch   float64 `json:"frames_per_batch"`
		} `json:"workers"`
		Ports []struct {
			Name   string  `json:"name"`
			RxPerS float64 `json:"rx_packets_per_s"`
		} `json:"ports"`
		Hottest []api.Hot `json:"hottest"`
	}
	eventually(t, func() error {
		s.weft.WeftJSON(&view, "top", "--once", "--interval", "500ms")
		if len(view.Workers) != 1 || view.Workers[0].FramesPerS < 10 || view.Workers[0].PerBatch < 1 || len(view.Ports) != 3 || view.Ports[0].RxPerS < 5 ||
			len(view.Hottest) == 0 || !strings.Contains(view.Hottest[0].Match, "in_port=") || view.Hottest[0].PacketsPerS < 5 {
			return fmt.Errorf("%+v", view)
		}
		return nil
	})
	s.weft.Weft("mod-port", "guest", "weight=3")
	text := s.weft.Weft("top", "--once")
	for _, word := range []string{"WORKER", "WEIGHT", "guest", "overlay", "uplink", "HOTTEST FLOWS"} {
		if !strings.Contains(text, word) {
			t.Errorf("no %q in\n%s", word, text)
		}
	}
	metrics := metricsOf(t, s.weft)
	for _, line := range []string{"\nweft_worker_batches_total{", "\nweft_table_flows{table=\"0\"} 2", "\nweft_port_info{"} {
		if !strings.Contains(metrics, line) {
			t.Errorf("no %q in\n%s", line, metrics)
		}
	}
}

// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"encoding/hex"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// ovs-ofctl, connected to Weft by OpenFlow, gets the same answers as from a switch of
// Open vSwitch. The commands are those of TestAsOVS, except for traces.
func TestOfctlOverTheWire(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("ovs-ofctl"); err != nil {
		t.Skip("ovs-ofctl is missing: install openvswitch-common")
	}
	l := newLab(t)
	d := l.Host("host").Weftd()
	for i := range 4 {
		d.Tap(l.Host(fmt.Sprint("p", i+1)), fmt.Sprintf("02:00:00:00:00:%02x", i+1), "", guestMTU)
	}
	files, err := filepath.Glob("testdata/ovs/*.play")
	if err != nil || len(files) == 0 {
		t.Fatalf("no recordings: %v", err)
	}
	target := "unix:" + strings.TrimSuffix(d.Socket, ".sock") + ".mgmt"
	commands := 0
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".play"), func(t *testing.T) {
			p := readPlay(t, file)
			for _, clear := range []string{"del-flows", "del-groups", "del-meters"} {
				d.Weft(clear)
			}
			for i := range p.steps {
				if p.replay(t, target, &p.steps[i]) {
					commands++
				}
			}
		})
	}
	t.Logf("%d commands", commands)
}

// replay runs one command of a recording with ovs-ofctl, and compares the answer. It
// returns false if ovs-ofctl has no such command.
func (p *play) replay(t *testing.T, target string, s *playStep) bool {
	words := s.words()
	if words[0] == "trace" {
		return false
	}
	if s.input != nil {
		words = append(words, writeInput(t, s.input))
	}
	out, err := p.ofctlAt(target, words...)
	if err != nil && slices.Contains(words, "diff-flows") && out != "" {
		err = nil
	}
	got, want := strings.Join(normalized(out, err != nil), "\n"), strings.Join(s.answer, "\n")
	if got != want {
		t.Errorf("ovs-ofctl -O %s %s: %v\n%s\nwant\n%s", p.version, s.command, err, got, want)
	}
	return true
}

// ovs-ofctl monitor shows frames that flows send to the controller, and the end and
// changes of flows. It resumes paused frames. This works in each version of OpenFlow.
func TestOfctlMonitors(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("ovs-ofctl"); err != nil {
		t.Skip("ovs-ofctl is missing: install openvswitch-common")
	}
	l := newLab(t)
	d := l.Host("host").Weftd()
	for i := range 2 {
		d.Tap(l.Host(fmt.Sprint("p", i+1)), fmt.Sprintf("02:00:00:00:00:%02x", i+1), "", guestMTU)
	}
	target := "unix:" + strings.TrimSuffix(d.Socket, ".sock") + ".mgmt"
	for _, version := range []string{"OpenFlow10", "OpenFlow13", "OpenFlow14", "OpenFlow15"} {
		t.Run(version, func(t *testing.T) {
			frames := watch(t, version, target, "65534 resume")
			changes := watch(t, version, target, "watch:table=3")
			ofctl := func(words ...string) {
				t.Helper()
				at := slices.IndexFunc(words, func(w string) bool { return !strings.HasPrefix(w, "-") })
				args := slices.Concat([]string{"-O", version}, words[:at+1], []string{target}, words[at+1:])
				if out, err := exec.Command("ovs-ofctl", args...).CombinedOutput(); err != nil || strings.Contains(string(out), "ERROR") {
					t.Fatalf("ovs-ofctl %v: %v\n%s", args, err, out)
				}
			}
			ofctl("del-flows")
			ofctl("add-flow", "cookie=0x77,in_port=1,actions=set_field:5->reg3,controller(max_len=60,userdata=01.02)")
			ofctl("packet-out", "in_port=1,packet=ffffffffffff02000000000108060001"+strings.Repeat("00", 70)+",actions=TABLE")
			ofctl("add-flow", "in_port=2,actions=load:1->reg4,push:reg4,controller(pause),pop:reg5,resubmit(,6)")
			ofctl("add-flow", "table=6,reg5=1,actions=controller(userdata=0a.0b)")
			ofctl("packet-out", "in_port=2,packet=ffffffffffff02000000000108060001"+strings.Repeat("00", 70)+",actions=TABLE")
			for from, userdata := range map[string]string{"controller": "0e.0e", "local": "0e.0f"} { // a frame that a packet-out pauses
				ofctl("packet-out", "in_port="+from+",packet=ffffffffffff02000000000108060001"+strings.Repeat("00", 70)+
					",actions=controller(pause),controller(userdata="+userdata+")")
			}
			// OVN clears in_port, so that the frame may leave where it came from.
			ofctl("packet-out", "in_port=controller,packet=ffffffffffff02000000000108060001"+strings.Repeat("00", 70)+
				",actions=load:0->NXM_OF_IN_PORT[],load:7->NXM_NX_REG2[],controller(pause,userdata=0f.00),resubmit(,8)")
			ofctl("add-flow", "table=8,in_port=0,reg2=7,actions=controller(userdata=0f.01)")
			ofctl("packet-out", "in_port=controller,packet=ffffffffffff02000000000108060001"+strings.Repeat("00", 70)+
				",actions=load:0->NXM_OF_IN_PORT[],load:7->NXM_NX_REG2[],controller(pause,userdata=0f.00),resubmit(,8)")
			ofctl("add-flow", "udp,actions=ct(table=5,zone=9)")
			ofctl("add-flow", "table=5,actions=controller")
			ofctl("packet-out", "in_port=1,packet="+hex.EncodeToString(udpFrame(t, 3000, 60))+",actions=TABLE")
			ofctl("add-flow", "table=3,send_flow_rem,ip,actions=output:2")
			ofctl("mod-flows", "table=3,ip,actions=output:1")
			ofctl("del-flows", "table=3")
			ofctl("ct-flush-zone", "7")
			ofctl("mod-port", "1", "down")
			if p := show(d).Ports[0]; p.Options["admin"] != "down" || p.State != "down" {
				t.Errorf("after mod-port 1 down: %+v", p)
			}
			ofctl("mod-port", "1", "up")
			if version != "OpenFlow10" && version != "OpenFlow13" {
				ofctl("--bundle", "add-flow", "table=4,actions=drop")
				file := filepath.Join(t.TempDir(), "bundle")
				text := "flow add table=7,actions=controller(userdata=0c.0d)\npacket-out in_port=1,packet=ffffffffffff02000000000108060001" +
					strings.Repeat("00", 70) + ",actions=resubmit(,7)\nflow delete table=7\n"
				if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
				ofctl("bundle", file)
				frames.expect(t, "userdata=0c.0d")
			}
			for _, want := range []string{"cookie=0x77 total_len=86 reg3=0x5,in_port=1 (via action) data_len=60", "userdata=01.02", "reg4=0x1,reg5=0x1,in_port=2", "userdata=0a.0b", "userdata=0e.0e", "userdata=0e.0f", "userdata=0f.01",
				"ct_state=new|trk,ct_zone=9,ct_nw_src=" + craftedSrcIP + ",ct_nw_dst=" + craftedDstIP + ",ct_nw_proto=17,ct_tp_src=4000,ct_tp_dst=3000,ip,in_port=1", "reason=delete"} {
				frames.expect(t, want)
			}
			for _, want := range []string{"event=ADDED table=3 cookie=0 ip actions=output:2", "event=MODIFIED table=3 cookie=0 ip actions=output:1",
				"event=DELETED reason=delete table=3 cookie=0 ip"} {
				changes.expect(t, want)
			}
		})
	}
}

// watcher is a running process of ovs-ofctl monitor.
type watcher struct {
	mu   sync.Mutex
	text strings.Builder
}

// Write implements io.Writer. It collects the output of the process.
func (w *watcher) Write(b []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.text.Write(b)
}

// watch starts ovs-ofctl monitor, and waits until the switch has answered its requests.
func watch(t *testing.T, version, target, name string) *watcher {
	t.Helper()
	w := &watcher{}
	cmd := exec.Command("ovs-ofctl", append([]string{"-O", version, "-vvconn:console:dbg", "monitor", target}, strings.Fields(name)...)...)
	cmd.Env = append(os.Environ(), "OVS_RUNDIR="+t.TempDir())
	cmd.Stdout, cmd.Stderr = w, w
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	// ovs-ofctl sends its settings one after the other, each with a barrier request, so
	// the last answer means that all are set.
	ready := "FLOW_MONITOR reply"
	if !strings.HasPrefix(name, "watch:") {
		ready = "SET_PACKET_IN_FORMAT"
	}
	w.expect(t, ready)
	return w
}

// expect waits for a text in the output.
func (w *watcher) expect(t *testing.T, text string) {
	t.Helper()
	const limit = 20 * time.Second
	for end := time.Now().Add(limit); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		w.mu.Lock()
		found := strings.Contains(w.text.String(), text)
		w.mu.Unlock()
		if found {
			return
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	t.Fatalf("no %q within %v in\n%s", text, limit, w.text.String())
}

// ovs-ofctl ct-flush and ct-flush-zone end the selected connections, and no others.
func TestOfctlFlushesConnections(t *testing.T) {
	if _, err := exec.LookPath("ovs-ofctl"); err != nil {
		t.Skip("ovs-ofctl is missing: install openvswitch-common")
	}
	l := newLab(t)
	d := l.Host("host").Weftd()
	d.Tap(l.Host("p1"), "02:00:00:00:00:01", "", guestMTU)
	target := "unix:" + strings.TrimSuffix(d.Socket, ".sock") + ".mgmt"
	const udp = "02000000000202000000000108004500002e00010000401166bc0a0000010a00000203e80035001a0000000000000000000000000000000000000000"
	ofctl := func(words ...string) {
		t.Helper()
		words = slices.Insert(slices.Clone(words), 1, target)
		if out, err := exec.Command("ovs-ofctl", words...).CombinedOutput(); err != nil || strings.Contains(string(out), "ERROR") {
			t.Fatalf("ovs-ofctl %v: %v\n%s", words, err, out)
		}
	}
	for _, zone := range []string{"5", "6", "7"} {
		ofctl("packet-out", "in_port=1,packet="+udp+",actions=ct(commit,zone="+zone+")")
	}
	zones := func() string {
		t.Helper()
		var found []string
		for _, line := range strings.Split(d.Weft("dump-conntrack"), "\n") {
			if _, zone, ok := strings.Cut(line, "zone="); ok {
				found = append(found, zone[:1])
			}
		}
		slices.Sort(found)
		return strings.Join(found, "")
	}
	const tuple = "ct_nw_src=10.0.0.1,ct_nw_dst=10.0.0.2,ct_nw_proto=17,ct_tp_src=1000,ct_tp_dst="
	for _, step := range []struct {
		words     []string
		remaining string
	}{
		{[]string{"ct-flush", "zone=5", tuple + "54"}, "567"}, {[]string{"ct-flush", "zone=5", tuple + "53"}, "67"},
		{[]string{"ct-flush-zone", "9"}, "67"}, {[]string{"ct-flush-zone", "6"}, "7"}, {[]string{"ct-flush"}, ""},
	} {
		ofctl(step.words...)
		if got := zones(); got != step.remaining {
			t.Errorf("after ovs-ofctl %v connections are in the zones %q, want %q", step.words, got, step.remaining)
		}
	}
}

// 64 OpenFlow peers send garbage, stop reading, or flood the switch with requests. They
// affect neither the frames of known flows nor the answers to other peers.
func TestHostilePeersOfOpenFlow(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	d := l.Host("host").Weftd()
	a, b := l.Host("a"), l.Host("b")
	d.Tap(a, "02:00:00:00:00:01", "10.0.0.1/24", guestMTU)
	d.Tap(b, "02:00:00:00:00:02", "10.0.0.2/24", guestMTU)
	d.Weft("add-flow", "actions=normal")
	for i := range 300 {
		d.Weft("add-flow", fmt.Sprintf("table=9,priority=%d,actions=drop", i))
	}
	pings := a.StartPings("10.0.0.2", 200, 0.01)
	path := strings.TrimSuffix(d.Socket, ".sock") + ".mgmt"
	stop := make(chan struct{})
	var done sync.WaitGroup
	for n := range 64 {
		done.Go(func() { hostilePeer(path, n, stop) })
	}
	counts, err := pings.Wait(time.Minute)
	if err != nil {
		t.Error(err)
	}
	shown := d.Weft("dump-flows", "table=9")
	close(stop)
	done.Wait()
	if counts.Sent != 200 || counts.Received != counts.Sent {
		t.Errorf("%d of %d pings answered", counts.Received, counts.Sent)
	}
	if n := strings.Count(shown, "table=9"); n != 300 {
		t.Errorf("%d flows shown, want 300", n)
	}
}

// hostilePeer connects to the switch again and again until stop closes. In each
// connection it does one kind of bad thing, which n chooses.
func hostilePeer(path string, n int, stop <-chan struct{}) {
	hello := []byte{4, 0, 0, 8, 0, 0, 0, 1}
	flows := append([]byte{4, 18, 0, 56, 0, 0, 0, 2, 0, 1, 0, 0, 0, 0, 0, 0, 0xff, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff}, make([]byte, 28)...)
	flows[49], flows[51] = 1, 4
	for {
		select {
		case <-stop:
			return
		default:
		}
		c, err := net.Dial("unix", path)
		if err != nil {
			time.Sleep(10 * time.Millisecond)
			continue
		}
		_ = c.SetDeadline(time.Now().Add(500 * time.Millisecond))
		_, _ = c.Write(hello)
		switch n % 4 {
		case 0: // garbage
			junk := make([]byte, 4096)
			for i := range junk {
				junk[i] = byte(i*n + 7)
			}
			_, _ = c.Write(junk)
		case 1: // it requests all flows again and again, and reads no answers
			for range 1000 {
				if _, err := c.Write(flows); err != nil {
					break
				}
			}
		case 2: // echoes as fast as they go
			go func() { _, _ = io.Copy(io.Discard, c) }()
			for range 2000 {
				if _, err := c.Write([]byte{4, 2, 0, 8, 0, 0, 0, 3}); err != nil {
					break
				}
			}
		case 3: // half a message
			_, _ = c.Write([]byte{4, 14, 0, 200, 0, 0, 0, 4})
			time.Sleep(100 * time.Millisecond)
		}
		c.Close()
	}
}

// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	"weft/e2e/lab"
)

// pingGap is the interval of the pings that measure an outage.
const pingGap = 50 * time.Millisecond

// steadyPings waits for the end of pings that have begun, one every pingGap. It returns
// the length of the outage.
func steadyPings(t *testing.T, p *lab.Pinging, sent int) (outage time.Duration) {
	t.Helper()
	counts, err := p.Wait(6 * settle)
	if err != nil {
		t.Fatal(err)
	}
	return time.Duration(sent-counts.Received) * pingGap
}

// Known flows keep forwarding while control is dead. The next control process takes over the
// whole state and all counters.
func TestKillControl(t *testing.T) {
	s := newSite(t)
	s.weft.Weft("add-flow", "priority=40000,in_port=guest,udp,tp_dst=1001,actions=output:overlay")
	reach(t, s.guest, remoteIP)
	tap, remote := s.guest.Raw("eth0"), s.remote.Raw("eth0")
	frame := udpFrame(t, 1001, 100)
	const count = 300
	counted := func(want uint64) {
		t.Helper()
		eventually(t, func() error {
			if got, _ := packets(t, s.weft, "tp_dst=1001"); got != want {
				return fmt.Errorf("%d frames counted, %d sent", got, want)
			}
			return nil
		})
	}
	send(t, tap, frame, count)
	counted(count)
	engine := show(s.weft).EnginePID

	const pings = 60
	steady := s.guest.StartPings(remoteIP, pings, pingGap.Seconds())
	time.Sleep(500 * time.Millisecond)
	s.weft.Control().Kill()
	send(t, tap, frame, count) // sent while control is dead
	time.Sleep(500 * time.Millisecond)
	if n := received(t, remote, 1001, 1001, 2*count); n != 2*count {
		t.Errorf("%d frames arrived with control dead, want %d", n, 2*count)
	}
	if pid := s.weft.EnginePID(); pid != engine {
		t.Fatalf("engine was %d, is %d after control's death", engine, pid)
	}
	s.weft.Start()
	if now := show(s.weft).EnginePID; now != engine {
		t.Errorf("engine was %d, is %d after control came back", engine, now)
	}
	send(t, tap, frame, count)
	counted(3 * count)
	if out := steadyPings(t, steady, pings); out != 0 {
		t.Errorf("pings were lost for %v while control was away", out)
	}
	s.weft.Weft("del-flows", "in_port=guest")
	s.weft.Weft("add-flow", "in_port=guest,actions=output:overlay")
	reach(t, s.guest, remoteIP)
}

// TCP connections survive a dead engine.
func TestKillEngine(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.weft.Weft("add-flow", "priority=40000,in_port=guest,udp,tp_dst=1001,actions=output:overlay")
	reach(t, s.guest, remoteIP)
	const count = 200
	frame, tap := udpFrame(t, 1001, 100), s.guest.Raw("eth0")
	send(t, tap, frame, count)

	s.remote.ServeIperf("5191")
	tcp := s.guest.Start("iperf3", "-c", remoteIP, "-p", "5191", "-t", "8", "-b", "20M", "--connect-timeout", "10000")
	const pings = 120
	steady := s.guest.StartPings(remoteIP, pings, pingGap.Seconds())
	time.Sleep(1500 * time.Millisecond)
	before := show(s.weft)
	s.weft.KillEngine()
	eventually(t, func() error {
		now := show(s.weft)
		if now.EnginePID == 0 || now.EnginePID == before.EnginePID {
			return fmt.Errorf("engine is %d, was %d", now.EnginePID, before.EnginePID)
		}
		return nil
	})
	if now := show(s.weft); now.Restarts != before.Restarts+1 {
		t.Errorf("engine restarts: %d, were %d", now.Restarts, before.Restarts)
	}
	t.Logf("the engine's death cost %v", steadyPings(t, steady, pings))
	if err := tcp.Wait(60 * time.Second); err != nil {
		t.Errorf("the TCP connection did not live on: %v\n%s", err, tcp.Output())
	}
	send(t, tap, frame, count)
	eventually(t, func() error {
		if got, _ := packets(t, s.weft, "tp_dst=1001"); got != 2*count {
			return fmt.Errorf("%d frames counted, %d sent", got, 2*count)
		}
		return nil
	})
	// The engine can be replaced repeatedly.
	for range 3 {
		s.weft.KillEngine()
		time.Sleep(200 * time.Millisecond)
		reach(t, s.guest, remoteIP)
	}
}

// Ports and flows survive a stop of weftd, and a kill.
func TestStateSurvivesRestart(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.weft.Weft("add-flow", "table=2,priority=7,cookie=0xabc,tcp,nw_dst=10.1.0.0/16,tp_dst=80,actions=drop")
	reach(t, s.guest, remoteIP)
	lines := func() string {
		var b strings.Builder
		for _, f := range flows(s.weft) {
			fmt.Fprintf(&b, "%d %d %#x %s %s\n", f.Table, f.Priority, f.Cookie, f.Match, f.Actions)
		}
		for _, p := range show(s.weft).Ports {
			fmt.Fprintf(&b, "%d %s %s %v\n", p.Number, p.Name, p.Type, p.Options)
		}
		return b.String()
	}
	before := lines()
	for _, way := range []struct {
		name string
		end  func()
	}{
		{"shutdown", s.weft.Stop},
		{"SIGKILL of both", func() { s.weft.Control().Kill(); s.weft.KillEngine() }},
		{"SIGKILL of both, engine first", func() {
			s.weft.Control().Signal(syscall.SIGSTOP)
			s.weft.KillEngine()
			s.weft.Control().Kill()
		}},
	} {
		way.end()
		for end := time.Now().Add(settle); s.weft.EnginePID() != 0 && time.Now().Before(end); {
			time.Sleep(20 * time.Millisecond)
		}
		s.weft.Start()
		if after := lines(); after != before {
			t.Errorf("%s: before\n%s\nafter\n%s", way.name, before, after)
		}
		s.readdress()
		reach(t, s.guest, remoteIP)
	}
}

// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"weft/api"
	"weft/e2e/lab"
)

// dump-flows counts every frame and every byte, and all frames arrive.
func TestCountsAreExact(t *testing.T) {
	s := newSite(t)
	s.weft.Weft("del-flows")
	s.weft.Weft("add-flow", "priority=20,in_port=guest,udp,tp_dst=1001,actions=output:overlay")
	s.weft.Weft("add-flow", "priority=20,in_port=guest,udp,tp_dst=1002,actions=drop")
	s.weft.Weft("add-flow", "priority=10,in_port=guest,udp,nw_dst="+craftedDstIP+",actions=output:overlay")
	s.weft.Weft("add-flow", "priority=20,in_port=overlay,udp,actions=output:guest")

	tap, remote := s.guest.Raw("eth0"), s.remote.Raw("eth0")
	const count = 1000
	sizes := map[int]int{1001: 100, 1002: 64, 1003: 1514} // frame size in bytes by UDP port
	sent := 0
	counted := func(added int) {
		t.Helper()
		for port, size := range sizes {
			send(t, tap, udpFrame(t, port, size), added)
		}
		send(t, remote, udpFrame(t, 1004, 333), added)
		sent += added
		for _, c := range []struct {
			flow string
			size int
		}{
			{"tp_dst=1001", sizes[1001]}, {"tp_dst=1002", sizes[1002]},
			{"priority=10", sizes[1003]}, {"in_port=overlay", 333},
		} {
			eventually(t, func() error {
				frames, octets := packets(t, s.weft, c.flow)
				if frames != uint64(sent) || octets != uint64(sent*c.size) {
					return fmt.Errorf("flow %s: %d frames and %d bytes, sent %d and %d", c.flow, frames, octets, sent, sent*c.size)
				}
				return nil
			})
		}
	}
	// 100 frames fit into a port's quota of frames that wait for control
	counted(100)
	counted(count - 100)
	// the counters must not grow any further
	time.Sleep(500 * time.Millisecond)
	if frames, _ := packets(t, s.weft, "tp_dst=1001"); frames != count {
		t.Errorf("the count went on to %d", frames)
	}
	if n := received(t, remote, 1001, 1003, 2*count); n != 2*count {
		t.Errorf("%d frames arrived at the peer's guest, want %d", n, 2*count)
	}
	if n := received(t, tap, 1004, 1004, count); n != count {
		t.Errorf("%d frames arrived at the guest, want %d", n, count)
	}
}

func send(t *testing.T, r *lab.Raw, frame []byte, count int) {
	t.Helper()
	for i := range count {
		if err := r.Send(frame); err != nil {
			t.Fatal(err)
		}
		if i%50 == 49 {
			time.Sleep(2 * time.Millisecond)
		}
	}
}

// received counts the received test frames with UDP ports lowPort to highPort. It waits for
// want frames, and then briefly for more.
func received(t *testing.T, r *lab.Raw, lowPort, highPort, want int) int {
	t.Helper()
	head := udpFrame(t, lowPort, 100)[:14]
	for n := 0; ; n++ {
		limit := settle
		if n >= want {
			limit = 2 * silence
		}
		_, err := r.Match(limit, func(f []byte) bool {
			if len(f) < 42 || !bytes.HasPrefix(f, head) {
				return false
			}
			port := int(f[36])<<8 | int(f[37])
			return port >= lowPort && port <= highPort
		})
		if err == lab.ErrTimeout {
			return n
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// An empty flow table forwards nothing. With the flow actions=normal, the switch learns
// addresses.
func TestLearningSwitch(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	d := l.Host("host").Weftd()
	var guests []*lab.Host
	for i := range 3 {
		g := l.Host(fmt.Sprintf("g%d", i+1))
		d.Tap(g, fmt.Sprintf("02:00:00:00:00:%02x", i+1), fmt.Sprintf("10.0.0.%d/24", i+1), guestMTU)
		guests = append(guests, g)
	}
	if p, err := lab.Ping(guests[0], "10.0.0.2", 2); err == nil && p.Received != 0 {
		t.Fatalf("without flows: %+v", p)
	}
	d.Weft("add-flow", "actions=normal")
	for i, from := range guests {
		for j := range guests {
			if i != j {
				reach(t, from, fmt.Sprintf("10.0.0.%d", j+1))
			}
		}
	}
	// the third guest gets no frames between addresses that the switch has learned
	third := guests[2].Raw("eth0")
	lab.MustPing(t, guests[0], "10.0.0.2", 5)
	unicast := []byte{2, 0, 0, 0, 0}
	if f, err := third.Match(500*time.Millisecond, func(f []byte) bool { return bytes.HasPrefix(f, unicast) && f[5] != 3 }); err == nil {
		t.Errorf("the third guest saw %x", f[:34])
	}
	// the switch floods a frame to an unknown address to all other ports
	second := guests[1].Raw("eth0")
	frame := udpFrame(t, 9, 80)
	if err := guests[0].Raw("eth0").Send(frame); err != nil {
		t.Fatal(err)
	}
	for _, r := range []*lab.Raw{second, third} {
		if _, err := r.Match(settle, func(f []byte) bool { return bytes.Equal(f, frame) }); err != nil {
			t.Errorf("unknown destination: %v", err)
		}
	}
	// the address has moved to port g1
	if err := guests[2].Raw("eth0").Send(udpFrameFrom(t, craftedDstMAC, 10)); err != nil {
		t.Fatal(err)
	}
	first, port := guests[0].Raw("eth0"), 100
	eventually(t, func() error { // control learns a moment later
		port++
		again := udpFrame(t, port, 80)
		if err := first.Send(again); err != nil {
			return err
		}
		if _, err := third.Match(settle, func(f []byte) bool { return bytes.Equal(f, again) }); err != nil {
			return fmt.Errorf("to a learned address: %w", err)
		}
		if _, err := second.Match(silence, func(f []byte) bool { return bytes.Equal(f, again) }); err == nil {
			return errors.New("a frame to a learned address was flooded")
		}
		return nil
	})
	// fdb-show lists learned addresses, and fdb-flush deletes them at once.
	var learned []api.MAC
	d.WeftJSON(&learned, "fdb-show")
	if !slices.ContainsFunc(learned, func(m api.MAC) bool { return m.MAC == "02:00:00:00:00:01" && m.Port == "g1" }) {
		t.Errorf("learned: %+v", learned)
	}
	if text := d.Weft("fdb-flush"); !strings.HasPrefix(text, fmt.Sprint(len(learned))) {
		t.Errorf("fdb-flush of %d: %s", len(learned), text)
	}
	forgotten := udpFrame(t, 12, 80)
	if err := guests[0].Raw("eth0").Send(forgotten); err != nil {
		t.Fatal(err)
	}
	if _, err := second.Match(settle, func(f []byte) bool { return bytes.Equal(f, forgotten) }); err != nil {
		t.Errorf("to a forgotten address: %v", err)
	}
	flood(t, guests[0], guests[1], "10.0.0.2")
}

// A changed or deleted flow takes effect at once, even for frames whose megaflow is in
// the caches.
func TestFlowsChangeUnderTraffic(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	reach(t, s.guest, remoteIP)
	s.weft.Weft("mod-flows", "in_port=guest,actions=drop")
	eventually(t, func() error {
		if p, err := lab.Ping(s.guest, remoteIP, 3); err != nil || p.Received != 0 {
			return fmt.Errorf("after mod-flows to drop: %+v, %v", p, err)
		}
		return nil
	})
	s.weft.Weft("mod-flows", "in_port=guest,actions=output:overlay")
	reach(t, s.guest, remoteIP)
	s.weft.Weft("del-flows", "in_port=overlay")
	eventually(t, func() error {
		if p, err := lab.Ping(s.guest, remoteIP, 3); err != nil || p.Received != 0 {
			return fmt.Errorf("after del-flows: %+v, %v", p, err)
		}
		return nil
	})
	s.weft.Weft("add-flow", "in_port=overlay,actions=output:guest")
	reach(t, s.guest, remoteIP)
}

// The remote guest receives frames with rewritten VLAN tags and addresses.
func TestActionsOnTheWire(t *testing.T) {
	s := newSite(t)
	tap, remote := s.guest.Raw("eth0"), s.remote.Raw("eth0")
	plain := udpFrame(t, 3000, 200)
	for _, c := range []struct {
		name, actions string
		frame, want   []byte
	}{
		{"output", "output:overlay", plain, plain},
		{"push_vlan", "push_vlan:0x8100,set_field:4101->vlan_tci,output:overlay", plain, tagged(plain, 5)},
		{"strip_vlan", "strip_vlan,output:overlay", tagged(plain, 77), plain},
		{"goto_table", "goto_table:3", plain, plain},
		{"dl_dst", "set_field:02:00:00:00:0c:33->dl_dst,output:overlay", plain, append([]byte{2, 0, 0, 0, 0x0c, 0x33}, plain[6:]...)},
	} {
		t.Run(c.name, func(t *testing.T) {
			s.weft.Weft("add-flow", "table=3,actions=output:overlay")
			s.weft.Weft("add-flow", "in_port=guest,actions="+c.actions)
			if err := tap.Send(c.frame); err != nil {
				t.Fatal(err)
			}
			got, err := remote.Match(settle, func(f []byte) bool { return bytes.HasSuffix(f, plain[14:]) })
			if err != nil || !bytes.Equal(got, c.want) {
				t.Errorf("%v\ngot  %x\nwant %x", err, got, c.want)
			}
		})
	}
}

// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"weft/e2e/lab"
	"weft/internal/shm"
	"weft/vhost"
	"weft/vhost/vhosttest"
)

// bystanders are two guests that exchange frames while another guest attacks the
// switch.
type bystanders struct {
	load     *vhosttest.Load
	received atomic.Uint64
	bad      atomic.Uint64
	totals   atomic.Pointer[vhosttest.LoadTotals]
	stop     chan struct{}
	ended    chan struct{}
}

func newBystanders(t *testing.T, d *lab.Daemon, dir string) *bystanders {
	t.Helper()
	l, err := vhosttest.NewLoad(vhosttest.LoadConfig{Check: true, Repeats: true, Flows: 16, InFlight: 64, Core: -1})
	if err != nil {
		t.Fatal(err)
	}
	b := &bystanders{load: l, stop: make(chan struct{}), ended: make(chan struct{})}
	for i, name := range []string{"a", "b"} {
		socket := filepath.Join(dir, name)
		d.Weft("add-port", name, "type=vhost-user", "path="+socket)
		f, err := vhosttest.Dial(socket)
		if err == nil {
			t.Cleanup(f.Close)
			err = f.Attach(l.Guests[i])
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, func() error {
		if a, b := portOf(t, d, "a"), portOf(t, d, "b"); a.State != "up" || b.State != "up" {
			return fmt.Errorf("ports are %s and %s", a.State, b.State)
		}
		return nil
	})
	// the flow comes after the ports are up, because frames to other ports are dropped
	d.Weft("add-flow", "in_port=a,actions=output:b")
	d.Weft("add-flow", "in_port=b,actions=output:a")
	go b.run()
	t.Cleanup(func() {
		close(b.stop)
		<-b.ended
		l.Close()
	})
	return b
}

func (b *bystanders) run() {
	defer close(b.ended)
	replaced := int64(0)
	for {
		select {
		case <-b.stop:
			return
		default:
		}
		frames := 0
		for range 16 {
			for i := range b.load.Guests {
				n, bad := b.load.Step(i)
				frames += n
				b.bad.Add(uint64(bad))
			}
		}
		b.received.Add(uint64(frames))
		totals := b.load.Totals()
		b.totals.Store(&totals)
		if frames == 0 {
			replaced = b.load.Replace(replaced)
			time.Sleep(20 * time.Microsecond)
		}
	}
}

// goOn waits until the bystanders have received 1,000 more frames.
func (b *bystanders) goOn(t *testing.T) {
	t.Helper()
	for from, end := b.received.Load(), time.Now().Add(settle); b.received.Load() < from+1000; time.Sleep(100 * time.Microsecond) {
		if time.Now().After(end) {
			t.Fatal("the other guests' frames have stopped")
		}
	}
	if b.bad.Load() != 0 {
		t.Fatalf("%d of the other guests' frames are not what was sent", b.bad.Load())
	}
}

// hostile is the attacking guest. The switch sends its frames back to it.
type hostile struct {
	*vhosttest.Guest
	front *vhosttest.FrontEnd
}

const hostileFeatures = vhost.FeatureVersion1 | vhost.FeatureMergeable | vhost.FeatureIndirect

func newHostile(t *testing.T, socket string, layout uint64) *hostile {
	t.Helper()
	g, err := vhosttest.New(vhosttest.Options{Num: 64, Features: hostileFeatures | layout})
	if err != nil {
		t.Fatal(err)
	}
	f, err := vhosttest.Dial(socket)
	if err == nil {
		err = f.Attach(g)
	}
	if err != nil {
		t.Fatal(err)
	}
	h := &hostile{g, f}
	h.echo(t)
	return h
}

func (h *hostile) close() {
	h.front.Close()
	h.Close()
}

func (h *hostile) echo(t *testing.T) {
	t.Helper()
	h.send()
	for end := time.Now().Add(settle); ; time.Sleep(100 * time.Microsecond) {
		if _, _, ok := h.Rx[0].Recv(nil); ok {
			h.Rx[0].Refill()
			return
		}
		if time.Now().After(end) {
			t.Fatal("the guest's frame does not come back")
		}
	}
}

func (h *hostile) send() {
	h.Tx[0].Send(make([]byte, 64))
	h.Tx[0].Publish()
}

// closed waits until the switch closes the guest's connection. Until then it calls
// repeat again and again, if repeat is not nil.
func (h *hostile) closed(t *testing.T, name string, repeat func()) {
	t.Helper()
	for end := time.Now().Add(settle); ; {
		_ = h.front.Conn.SetReadDeadline(time.Now().Add(time.Millisecond))
		_, err := h.front.Conn.Read(make([]byte, 1))
		if errors.Is(err, io.EOF) || errors.Is(err, unix.ECONNRESET) {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("%s: the guest is still attached: %v", name, err)
		}
		if repeat != nil {
			repeat()
		}
	}
}

// misdeed is an attack that does not use the rings. After a misdeed that is marked as harmless,
// the switch must keep the guest connected.
type misdeed struct {
	name     string
	harmless bool
	do       func(t *testing.T, h *hostile)
}

func misdeeds() []misdeed {
	send := func(t *testing.T, h *hostile, request uint32, payload []byte, fds ...int) {
		if err := h.front.Send(request, vhosttest.Version, payload, fds...); err != nil && !errors.Is(err, unix.EPIPE) {
			t.Fatal(err)
		}
	}
	table := func(regions ...vhost.RegionSpec) []byte {
		b := vhosttest.Pair(len(regions), 0)
		for _, r := range regions {
			b = append(b, vhosttest.Region(r)...)
		}
		return b
	}
	return []misdeed{
		{"memory is truncated", false, func(t *testing.T, h *hostile) {
			if err := h.Truncate(4096); err != nil {
				t.Fatal(err)
			}
			shm.SignalOwn(h.Tx[0].KickFD())
		}},
		{"memory table overlaps", false, func(t *testing.T, h *hostile) {
			r := h.Regions()[0]
			half := r
			half.Size, half.GuestAddr = r.Size/2, r.GuestAddr+4096
			send(t, h, vhosttest.SetMemTable, table(r, half), h.FD(), h.FD())
		}},
		{"memory table changes under load", true, func(t *testing.T, h *hostile) {
			for range 20 {
				h.send()
				if err := h.front.SetMemory(h.Guest); err != nil {
					t.Fatal(err)
				}
			}
			for range 20 {
				h.echo(t)
			}
		}},
		{"a ring moves out of memory", false, func(t *testing.T, h *hostile) {
			addr := vhosttest.Pair(1, 0)
			for _, a := range []uint64{1 << 50, 1<<50 + 4096, 1<<50 + 8192, 0} {
				addr = append(addr, vhosttest.Number(a)...)
			}
			h.send()
			send(t, h, vhosttest.SetVringAddr, addr)
		}},
		{"a ring moves while it is in use", false, func(t *testing.T, h *hostile) {
			v := h.Rx[0].Vring() // exchanges the avail ring and the used ring of the receive queue
			addr := vhosttest.Pair(1, 0)
			for _, a := range []uint64{v.Desc, v.Used, v.Avail, 0} {
				addr = append(addr, vhosttest.Number(a)...)
			}
			send(t, h, vhosttest.SetVringAddr, addr)
		}},
		{"a flood of messages", true, func(t *testing.T, h *hostile) {
			for range 1000 { // exceeds the rest of the port's message budget after the attacks before
				send(t, h, vhosttest.SetOwner, nil)
			}
		}},
		{"a flood of descriptors", false, func(t *testing.T, h *hostile) {
			fds := make([]int, 200)
			for i := range fds {
				fds[i] = h.FD()
			}
			send(t, h, vhosttest.SetMemTable, table(h.Regions()[0]), fds...)
		}},
		{"one descriptor after the other", true, func(t *testing.T, h *hostile) {
			for range 500 {
				send(t, h, vhosttest.SetLogFD, nil, h.FD())
			}
		}},
		{"kicks without buffers", true, func(t *testing.T, h *hostile) {
			for range 20_000 {
				shm.SignalOwn(h.Tx[0].KickFD())
			}
		}},
		{"a message that is no message", false, func(t *testing.T, h *hostile) {
			send(t, h, 1<<31, nil)
		}},
	}
}

// The switch stops an attacker's port and logs this in one line. It keeps none of the
// attacker's open files. Other guests are not affected.
func TestAttacks(t *testing.T) {
	l := newLab(t)
	d := l.Host("host").Weftd()
	socket := filepath.Join(l.Dir, "bad")
	d.Weft("add-port", "bad", "type=vhost-user", "path="+socket)
	d.Weft("add-port", "stalls", "type=vhost-user", "path="+socket+"2")
	d.Weft("add-flow", "in_port=bad,actions=in_port")
	b := newBystanders(t, d, l.Dir)
	// the first frames of a flow may arrive out of order, so the test waits until they
	// have passed
	b.goOn(t)
	b.goOn(t)
	first := b.totals.Load()
	engine, control := d.EnginePID(), show(d).PID
	before := openFiles(engine) + openFiles(control)
	stalled := newStalled(t, socket+"2")
	stopped := 0
	for _, layout := range []uint64{0, vhost.FeatureRingPacked} {
		for _, transmit := range []bool{true, false} {
			attacks := vhosttest.Attacks
			if transmit {
				attacks = append(append([]vhosttest.Attack{}, attacks...), vhosttest.TransmitAttacks...)
			}
			for _, attack := range attacks {
				if attack.Split && layout != 0 {
					continue
				}
				h := newHostile(t, socket, layout)
				var again func()
				if transmit {
					attack.Do(h.Tx[0])
				} else {
					attack.Do(h.Rx[0])
					again = h.send // the switch notices the attack when it returns a frame
				}
				b.goOn(t)
				h.closed(t, fmt.Sprintf("%s, transmit %v, features %#x", attack.Name, transmit, layout), again)
				stopped++
				b.goOn(t)
				h.close()
			}
		}
	}
	for _, m := range misdeeds() {
		t.Run(m.name, func(t *testing.T) {
			h := newHostile(t, socket, 0)
			m.do(t, h)
			b.goOn(t)
			if m.harmless {
				h.echo(t)
				h.front.Close()
			} else {
				h.closed(t, m.name, nil)
				stopped++
			}
			b.goOn(t)
			h.close()
		})
	}
	stalled.closed(t, "a message that does not end", nil)
	if last := b.totals.Load(); last.Repeated != first.Repeated || last.Late != first.Late || last.Misused != 0 {
		t.Errorf("%d frames of the bystanders arrived twice, %d late, and %d buffers were misused; want none", last.Repeated-first.Repeated, last.Late-first.Late, last.Misused)
	}
	if now := d.EnginePID(); now != engine {
		t.Fatalf("the engine died: %d, now %d", engine, now)
	}
	log := d.Control().Output()
	if got := strings.Count(log, "level=ERROR msg=\"vhost-user: disconnected\" port=bad") + strings.Count(log, "level=ERROR msg=\"vhost-user: disconnected\" socket="+socket+" "); got != stopped {
		t.Errorf("the log has %d lines for %d stopped ports:\n%s", got, stopped, log[:min(len(log), 2000)])
	}
	eventually(t, func() error {
		if now := openFiles(engine) + openFiles(control); now > before {
			return fmt.Errorf("%d descriptors are open, %d were before", now, before)
		}
		return nil
	})
	t.Logf("the switch stopped the port %d times; the bystanders received %d frames", stopped, b.received.Load())
}

// newStalled returns a front end that stops in the middle of its first message.
func newStalled(t *testing.T, socket string) *hostile {
	t.Helper()
	f, err := vhosttest.Dial(socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(f.Close)
	if _, err := f.Conn.Write([]byte{1, 0, 0}); err != nil {
		t.Fatal(err)
	}
	return &hostile{front: f}
}

func openFiles(pid int) int {
	entries, _ := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	return len(entries)
}

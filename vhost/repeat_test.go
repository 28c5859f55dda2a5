// SPDX-License-Identifier: Apache-2.0

package vhost_test

import (
	"bytes"
	"encoding/binary"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"weft/vhost"
	"weft/vhost/vhosttest"
)

// holdings counts the descriptors, mappings and goroutines of the test process.
type holdings struct{ files, mappings, goroutines int }

func held(t *testing.T) holdings {
	t.Helper()
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		t.Fatal(err)
	}
	// Guest memory is in shared mappings. The Go runtime's own mappings vary.
	return holdings{openFiles(t), bytes.Count(maps, []byte(" rw-s ")), runtime.NumGoroutine()}
}

// TestRepeats: each request is repeated a thousand times. No descriptor, mapping or goroutine is left
// behind, and frames still pass.
func TestRepeats(t *testing.T) {
	const times = 1000
	n, p := vhosttest.Number, vhosttest.Pair
	r := newRig(t, false)
	r.Unbudgeted()
	g := guest(t, vhosttest.Options{Features: features, Pairs: 2})
	f := r.attach(t, g)
	inflight := memfd(t, 1<<20)
	log := memfd(t, logSize)
	table := p(1, 0)
	table = append(table, vhosttest.Region(g.Regions()[0])...)
	spare := vhosttest.Region(vhost.RegionSpec{GuestAddr: 1 << 40, UserAddr: 1 << 40, Size: 1 << 20})
	buffer := append(n(1<<20), n(0)...)
	buffer = binary.LittleEndian.AppendUint16(buffer, 4)
	buffer = binary.LittleEndian.AppendUint16(buffer, 256)
	address := func(q *vhosttest.Queue) []byte {
		v := q.Vring()
		b := p(v.Index, 0)
		for _, a := range []uint64{v.Desc, v.Used, v.Avail, 0} {
			b = append(b, n(a)...)
		}
		return b
	}
	event := newEvent(t)
	channel := socket(t)
	again := func() { // the front end sets the rings up again
		if err := f.AttachAgain(g); err != nil {
			t.Fatal(err)
		}
	}
	on := g.Features | vhost.FeatureProtocolFeatures
	steps := []struct {
		name    string
		request uint32
		payload func(i int) []byte
		fds     []int
		finish  func()
	}{
		{"GET_FEATURES", 1, nil, nil, nil},
		{"SET_FEATURES", 2, func(i int) []byte { return n(on | vhost.FeatureLogAll*uint64(i%2)) }, nil, nil},
		{"SET_OWNER", 3, nil, nil, nil},
		{"RESET_OWNER", 4, nil, nil, nil},
		{"SET_MEM_TABLE", 5, func(int) []byte { return table }, []int{g.FD()}, nil},
		{"SET_LOG_BASE", 6, func(int) []byte { return append(n(logSize), n(0)...) }, []int{log}, nil},
		{"SET_LOG_FD", 7, nil, []int{event}, nil},
		{"SET_VRING_NUM", 8, func(int) []byte { return p(0, 256) }, nil, nil},
		{"SET_VRING_ADDR", 9, func(int) []byte { return address(g.Rx[0]) }, nil, nil},
		{"SET_VRING_KICK", 12, func(int) []byte { return n(1) }, []int{event}, nil},
		{"SET_VRING_CALL", 13, func(int) []byte { return n(1) }, []int{event}, nil},
		{"SET_VRING_CALL of none", 13, func(int) []byte { return n(1 | 1<<8) }, nil, nil},
		{"SET_VRING_ERR", 14, func(int) []byte { return n(1) }, []int{event}, nil},
		{"GET_PROTOCOL_FEATURES", 15, nil, nil, nil},
		{"GET_QUEUE_NUM", 17, nil, nil, nil},
		{"SET_VRING_ENABLE", 18, func(i int) []byte { return p(2, uint32(i%2)) }, nil, nil},
		{"SEND_RARP", 19, func(int) []byte { return n(1) }, nil, nil},
		{"NET_SET_MTU", 20, func(i int) []byte { return n(uint64(1500 + i%2)) }, nil, nil},
		{"NET_SET_MTU refused", 20, func(int) []byte { return n(1) }, nil, nil},
		{"GET_INFLIGHT_FD", 31, func(int) []byte { return buffer }, nil, nil},
		{"SET_INFLIGHT_FD", 32, func(int) []byte { return buffer }, []int{inflight}, nil},
		{"GET_MAX_MEM_SLOTS", 36, nil, nil, nil},
		{"ADD_MEM_REG", 37, func(int) []byte { return append(n(0), spare...) }, []int{inflight}, nil},
		{"REM_MEM_REG", 38, func(int) []byte { return append(n(0), spare...) }, []int{inflight}, nil},
		{"SET_STATUS", 39, func(i int) []byte { return n(uint64(1 + i%2)) }, nil, nil},
		{"GET_STATUS", 40, nil, nil, nil},
		{"SET_PROTOCOL_FEATURES", 16, func(int) []byte { return n(vhost.ProtocolReplyAck | vhost.ProtocolMultiQueue) }, nil, nil},
		{"SET_BACKEND_REQ_FD", 21, nil, []int{channel}, nil},
		{"SET_VRING_BASE", 10, func(i int) []byte { return p(3, uint32(i%2)) }, nil, nil},
		{"GET_VRING_BASE", 11, func(int) []byte { return p(3, 0) }, nil, again},
		{"RESET_DEVICE", 34, nil, nil, again},
	}
	for _, step := range steps {
		send := func(i int) {
			t.Helper()
			var payload []byte
			if step.payload != nil {
				payload = step.payload(i)
			}
			if err := f.Send(step.request, vhosttest.Version|vhosttest.NeedReply, payload, step.fds...); err != nil {
				t.Fatalf("%s: %v", step.name, err)
			}
			if err := takeReply(f, step.request); err != nil {
				t.Fatalf("%s: %v", step.name, err)
			}
		}
		settle := func() { // RESET_OWNER disables the rings
			t.Helper()
			if step.finish != nil {
				step.finish()
			}
			for _, q := range []*vhosttest.Queue{g.Rx[0], g.Tx[0], g.Rx[1], g.Tx[1]} {
				if err := f.Enable(q, true); err != nil {
					t.Fatalf("%s: %v", step.name, err)
				}
			}
			r.waitRunning(t, true)
		}
		send(0)
		send(1)
		settle()
		before := held(t)
		for i := range times {
			send(i)
		}
		settle()
		eventually(t, step.name+": nothing piled up", func() bool {
			now := held(t)
			return now.files <= before.files && now.mappings <= before.mappings && now.goroutines <= before.goroutines
		})
	}
	if got := r.Status().Breaks; got != 0 {
		t.Fatalf("%d connections broken", got)
	}
}

func socket(t *testing.T) int {
	t.Helper()
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(pair[0]); unix.Close(pair[1]) })
	return pair[0]
}

func takeReply(f *vhosttest.FrontEnd, request uint32) error {
	if request != 31 {
		_, err := f.Reply(request)
		return err
	}
	b, oob := make([]byte, 64), make([]byte, 64)
	_, n, _, _, err := f.Conn.ReadMsgUnix(b, oob)
	if err != nil {
		return err
	}
	messages, err := unix.ParseSocketControlMessage(oob[:n])
	if err != nil {
		return err
	}
	for i := range messages {
		fds, err := unix.ParseUnixRights(&messages[i])
		if err != nil {
			return err
		}
		for _, fd := range fds {
			unix.Close(fd)
		}
	}
	return nil
}

// TestPartialMessages: front ends disconnect in the middle of a message. The session frees everything
// that they have sent.
func TestPartialMessages(t *testing.T) {
	r := newRig(t, false)
	r.Unbudgeted()
	file := memfd(t, 1<<20)
	whole := append([]byte{vhosttest.SetMemTable, 0, 0, 0, vhosttest.Version, 0, 0, 0, 40, 0, 0, 0}, make([]byte, 40)...)
	leave := func(bytes, fds int) {
		t.Helper()
		f, err := vhosttest.Dial(r.path)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		connects := r.Status().Connects
		eventually(t, "connection", func() bool { return r.Status().Connected && r.Status().Connects >= connects })
		rights := []int{file, file, file, file, file, file, file, file, file, file}[:fds]
		if _, _, err := f.Conn.WriteMsgUnix(whole[:bytes], unix.UnixRights(rights...), nil); err != nil {
			t.Fatal(err)
		}
	}
	gone := func() { eventually(t, "disconnection", func() bool { return !r.Status().Connected }) }
	leave(5, 2) // so that later front ends reuse the first one's buffers
	gone()
	before := held(t)
	for range 10 {
		for _, bytes := range []int{1, 5, 11, 12, 13, 51} {
			for _, fds := range []int{0, 1, 8, 10} {
				leave(bytes, fds)
				gone()
			}
		}
	}
	eventually(t, "nothing piled up", func() bool {
		now := held(t)
		return now.files <= before.files && now.mappings <= before.mappings && now.goroutines <= before.goroutines
	})
	g := guest(t, vhosttest.Options{Features: features})
	r.attach(t, g)
	r.echo(t, g, 1)
}

// TestFirstMessage: a front end that sends no first message is disconnected after a time. After its
// first message, it may stay silent.
func TestFirstMessage(t *testing.T) {
	r := newRigWith(t, func(s *vhost.Session) { s.ExpectFirst(20 * time.Millisecond) })
	silent, err := vhosttest.Dial(r.path)
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	eventually(t, "disconnection of the silent one", func() bool {
		return strings.Contains(r.Status().LastError, "has sent nothing for 20ms")
	})
	var f *vhosttest.FrontEnd
	eventually(t, "first message", func() bool {
		if f, err = vhosttest.Dial(r.path); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(f.Close)
		_, err := f.U64(vhosttest.GetFeatures, nil)
		return err == nil
	})
	time.Sleep(60 * time.Millisecond)
	if _, err := f.U64(vhosttest.GetFeatures, nil); err != nil {
		t.Fatal(err)
	}
}

// TestUnchanged: a message that does not change the state makes no part of it out of date.
func TestUnchanged(t *testing.T) {
	r := newRig(t, false)
	g := guest(t, vhosttest.Options{Features: features})
	f := r.attach(t, g)
	if _, err := f.U64(vhosttest.GetStatus, nil); err != nil {
		t.Fatal(err)
	}
	before := r.engine.Changes.Load()
	for range 100 {
		for _, m := range []struct {
			request uint32
			payload []byte
		}{{vhosttest.SetOwner, nil}, {vhosttest.SetVringEnable, vhosttest.Pair(0, 1)}, {vhosttest.GetStatus, nil}} {
			if _, err := f.Call(m.request, m.payload); err != nil {
				t.Fatal(err)
			}
		}
	}
	if n := r.engine.Changes.Load() - before; n != 0 {
		t.Fatalf("kept %d times", n)
	}
	r.waitRunning(t, true)
	r.echo(t, g, 1)
}

// TestBudget: a front end that has used up its message budget has to wait, and Status counts the wait.
// Close does not wait for it.
func TestBudget(t *testing.T) {
	r := newRig(t, false)
	g := guest(t, vhosttest.Options{Features: features})
	f := r.attach(t, g)
	// The answer shows that all earlier messages were handled.
	if _, err := f.U64(vhosttest.GetFeatures, nil); err != nil {
		t.Fatal(err)
	}
	r.Exhaust(10)
	for range 10 {
		if _, err := f.U64(vhosttest.GetFeatures, nil); err != nil {
			t.Fatal(err)
		}
	}
	for range 20 {
		if err := f.Send(vhosttest.SetOwner, vhosttest.Version, nil); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "throttled", func() bool { return r.Status().Throttled == 1 })
	r.echo(t, g, 1)
	r.Close()
}

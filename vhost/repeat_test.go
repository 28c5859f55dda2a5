package vhost_test

import (
	"bytes"
	"encoding/binary"
	"os"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"

	"weft/vhost"
	"weft/vhost/vhosttest"
)

// holdings counts resources of this process, which has both session and device.
type holdings struct{ files, mappings, goroutines int }

func held(t *testing.T) holdings {
	t.Helper()
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		t.Fatal(err)
	}
	// Counts shared mappings, which are the guest's; the runtime's own change with
	// its heap.
	return holdings{openFiles(t), bytes.Count(maps, []byte(" rw-s ")), runtime.NumGoroutine()}
}

// TestRepeats sends every request a thousand times to a running device. The numbers
// of descriptors, mappings and goroutines do not change, and the guest works on.
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
	on := g.Features | vhost.FeatureProtocolFeatures
	steps := []struct {
		name    string
		request uint32
		payload func(i int) []byte
		fds     []int
	}{
		{"GET_FEATURES", 1, nil, nil},
		{"SET_FEATURES", 2, func(i int) []byte { return n(on | vhost.FeatureLogAll*uint64(i%2)) }, nil},
		{"SET_OWNER", 3, nil, nil},
		{"RESET_OWNER", 4, nil, nil},
		{"SET_MEM_TABLE", 5, func(int) []byte { return table }, []int{g.FD()}},
		{"SET_LOG_BASE", 6, func(int) []byte { return append(n(logSize), n(0)...) }, []int{log}},
		{"SET_LOG_FD", 7, nil, []int{event}},
		{"SET_VRING_NUM", 8, func(int) []byte { return p(0, 256) }, nil},
		{"SET_VRING_ADDR", 9, func(int) []byte { return address(g.Rx[0]) }, nil},
		{"SET_VRING_KICK", 12, func(int) []byte { return n(1) }, []int{event}},
		{"SET_VRING_CALL", 13, func(int) []byte { return n(1) }, []int{event}},
		{"SET_VRING_CALL of none", 13, func(int) []byte { return n(1 | 1<<8) }, nil},
		{"SET_VRING_ERR", 14, func(int) []byte { return n(1) }, []int{event}},
		{"GET_PROTOCOL_FEATURES", 15, nil, nil},
		{"GET_QUEUE_NUM", 17, nil, nil},
		{"SET_VRING_ENABLE", 18, func(i int) []byte { return p(2, uint32(i%2)) }, nil},
		{"SEND_RARP", 19, func(int) []byte { return n(1) }, nil},
		{"NET_SET_MTU", 20, func(i int) []byte { return n(uint64(1500 + i%2)) }, nil},
		{"NET_SET_MTU refused", 20, func(int) []byte { return n(1) }, nil},
		{"GET_INFLIGHT_FD", 31, func(int) []byte { return buffer }, nil},
		{"SET_INFLIGHT_FD", 32, func(int) []byte { return buffer }, []int{inflight}},
		{"GET_MAX_MEM_SLOTS", 36, nil, nil},
		{"ADD_MEM_REG", 37, func(int) []byte { return append(n(0), spare...) }, []int{inflight}},
		{"REM_MEM_REG", 38, func(int) []byte { return append(n(0), spare...) }, []int{inflight}},
		{"SET_STATUS", 39, func(i int) []byte { return n(uint64(1 + i%2)) }, nil},
		{"GET_STATUS", 40, nil, nil},
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
		settle := func() { // RESET_OWNER stops the rings
			for _, q := range []*vhosttest.Queue{g.Rx[0], g.Tx[0], g.Rx[1], g.Tx[1]} {
				if err := f.Enable(q, true); err != nil {
					t.Fatalf("%s: %v", step.name, err)
				}
			}
			r.waitRunning(t, true)
		}
		send(0) // what a message keeps is kept only once
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

// takeReply reads a reply and closes its descriptor, if it has one.
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

// TestUnchanged: a message that changes nothing makes no new snapshot.
func TestUnchanged(t *testing.T) {
	r := newRig(t, false)
	g := guest(t, vhosttest.Options{Features: features})
	f := r.attach(t, g)
	if _, err := f.U64(vhosttest.GetStatus, nil); err != nil { // answered after the start is kept
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

// TestBudget: a front end that exceeds its budget waits and is counted. The end of
// the session does not wait.
func TestBudget(t *testing.T) {
	r := newRig(t, false)
	g := guest(t, vhosttest.Options{Features: features})
	f := r.attach(t, g)
	r.Exhaust(10)
	for range 10 {
		if _, err := f.U64(vhosttest.GetFeatures, nil); err != nil {
			t.Fatal(err)
		}
	}
	for range 20 { // the messages fit into the socket
		if err := f.Send(vhosttest.SetOwner, vhosttest.Version, nil); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "throttled", func() bool { return r.Status().Throttled == 1 })
	r.echo(t, g, 1)
	r.Close()
}

// SPDX-License-Identifier: Apache-2.0

package vhost_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"weft/packet"
	"weft/vhost"
	"weft/vhost/vhosttest"
)

const features = uint64(vhost.FeatureVersion1 | vhost.FeatureMergeable | vhost.FeatureIndirect | vhost.FeatureEventIndex)

// lines collects log lines.
type lines struct {
	sync.Mutex
	bytes.Buffer
}

func (l *lines) Write(b []byte) (int, error) {
	// The delay makes tests stricter: when a test sees a new state, the log line must already be
	// there.
	time.Sleep(2 * time.Millisecond)
	l.Lock()
	defer l.Unlock()
	return l.Buffer.Write(b)
}

func (l *lines) count(substring string) int {
	l.Lock()
	defer l.Unlock()
	return strings.Count(l.String(), substring)
}

// rig is a session with its engine.
type rig struct {
	*vhost.Session
	engine *vhosttest.Engine
	path   string
	log    *lines
	memory *vhost.GuestMemory // nil: a pool of its own
	cancel context.CancelFunc
	ended  chan struct{}
}

func newRig(t *testing.T, client bool) *rig {
	t.Helper()
	return newRigOf(t, client, nil)
}

func newRigOf(t *testing.T, client bool, memory *vhost.GuestMemory) *rig {
	t.Helper()
	r := &rig{engine: &vhosttest.Engine{}, path: filepath.Join(t.TempDir(), "vhost.sock"), log: &lines{}, memory: memory}
	var err error
	if r.Session, err = vhost.NewSession(r.config(client), r.engine); err != nil {
		t.Fatal(err)
	}
	r.run(t)
	return r
}

// newRigWith starts a session with a test engine. Before that, it lets the function change modify the
// session.
func newRigWith(t *testing.T, change func(*vhost.Session)) *rig {
	t.Helper()
	r := &rig{engine: &vhosttest.Engine{}, path: filepath.Join(t.TempDir(), "vhost.sock"), log: &lines{}}
	var err error
	if r.Session, err = vhost.NewSession(r.config(false), r.engine); err != nil {
		t.Fatal(err)
	}
	change(r.Session)
	r.run(t)
	return r
}

func (r *rig) config(client bool) vhost.Config {
	return vhost.Config{Path: r.path, Client: client, Queues: 2, Memory: r.memory, Logger: slog.New(slog.NewTextHandler(r.log, nil))}
}

func (r *rig) run(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	r.cancel, r.ended = cancel, make(chan struct{})
	s, ended := r.Session, r.ended
	go func() {
		defer close(ended)
		if err := s.Run(ctx); err != nil {
			t.Error(err)
		}
	}()
	t.Cleanup(func() {
		cancel()
		s.Close()
		r.engine.Kill()
	})
}

func eventually(t *testing.T, name string, condition func() bool) {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); !condition(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%s: not within 30 s", name)
		}
	}
}

func (r *rig) waitRunning(t *testing.T, running bool) {
	t.Helper()
	eventually(t, "device running", func() bool { return r.Status().Running == running && (r.device() != nil) == running })
}

func (r *rig) device() *vhost.Device {
	r.engine.Lock()
	defer r.engine.Unlock()
	d, _ := r.engine.Device.(*vhost.Device)
	return d
}

func (r *rig) attach(t *testing.T, g *vhosttest.Guest) *vhosttest.FrontEnd {
	t.Helper()
	f, err := vhosttest.Dial(r.path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(f.Close)
	if err := f.Attach(g); err != nil {
		t.Fatal(err)
	}
	r.waitRunning(t, true)
	return f
}

// echo forwards a frame of the guest through the device back to the same guest.
func (r *rig) echo(t *testing.T, g *vhosttest.Guest, n uint64) {
	t.Helper()
	r.engine.Lock() // takes the place of the worker
	defer r.engine.Unlock()
	d, ok := r.engine.Device.(*vhost.Device)
	if !ok {
		t.Fatal("no device")
	}
	frame := random(n, 500)
	if !g.Tx[0].Send(frame) {
		t.Fatal("no buffer")
	}
	g.Tx[0].Publish()
	if got := forward(t, new(packet.Batch), d, d); got != 1 {
		t.Fatalf("%d frames", got)
	}
	if got, _, ok := g.Rx[0].Recv(nil); !ok || !bytes.Equal(got, frame) {
		t.Fatalf("received %v, %d bytes", ok, len(got))
	}
	g.Rx[0].Refill()
}

// TestSession tests a session as client and as server. A guest attaches, passes frames, stops and
// restarts single rings, detaches, and attaches again.
func TestSession(t *testing.T) {
	for _, client := range []bool{false, true} {
		t.Run(map[bool]string{false: "server", true: "client"}[client], func(t *testing.T) {
			r := newRig(t, client)
			connect := func() *vhosttest.FrontEnd {
				f, err := vhosttest.Dial(r.path)
				if err != nil {
					t.Fatal(err)
				}
				return f
			}
			if client {
				l, err := vhosttest.ListenFront(r.path)
				if err != nil {
					t.Fatal(err)
				}
				defer l.Close()
				connect = func() *vhosttest.FrontEnd {
					f, err := vhosttest.Accept(l)
					if err != nil {
						t.Fatal(err)
					}
					return f
				}
			}
			for round := range 2 {
				g := guest(t, vhosttest.Options{Pairs: 2, Features: features, Interrupts: true, SplitRegions: true})
				f := connect()
				if err := f.Attach(g); err != nil {
					t.Fatal(err)
				}
				r.waitRunning(t, true)
				useSession(t, r, f, g, round)
				f.Close()
				eventually(t, "disconnect", func() bool { return !r.Status().Connected })
				if st := r.Status(); st.Running || st.Breaks != 0 || st.Memory != 0 {
					t.Fatalf("after the guest is gone: %+v", st)
				}
			}
		})
	}
}

func useSession(t *testing.T, r *rig, f *vhosttest.FrontEnd, g *vhosttest.Guest, round int) {
	t.Helper()
	st := r.Status()
	if !st.Connected || len(st.Vrings) == 0 || st.Regions != 3 || st.Connects != uint64(round+1) {
		t.Fatalf("status %+v", st)
	}
	for i := range uint64(10) {
		r.echo(t, g, i)
	}
	for i, q := range []*vhosttest.Queue{g.Tx[0], g.Rx[0]} {
		base, err := f.Stop(q)
		if err != nil || base != 10 {
			t.Fatalf("vring %d stopped at %d, %v", q.Index(), base, err)
		}
		if i == 0 {
			if err := f.Send(vhosttest.GetVringBase, vhosttest.Version, vhosttest.Pair(2, 0)); err != nil {
				t.Fatal(err)
			}
			if _, err := f.Reply(vhosttest.GetVringBase); err != nil {
				t.Fatal(err)
			}
		}
	}
	r.waitRunning(t, false)
	for _, q := range []*vhosttest.Queue{g.Rx[0], g.Tx[0]} {
		if err := f.SetVring(q, 10); err != nil {
			t.Fatal(err)
		}
	}
	r.waitRunning(t, true)
	r.echo(t, g, 11)
	// A running device is stopped for a new memory table and started again.
	starts := r.engine.Starts
	if err := f.SetMemory(g); err != nil {
		t.Fatal(err)
	}
	eventually(t, "start over new memory", func() bool { r.engine.Lock(); defer r.engine.Unlock(); return r.engine.Starts > starts })
	r.waitRunning(t, true)
	r.echo(t, g, 12)
}

// TestSessionLateRing: a device already runs when another ring is set up. The ring becomes part of the
// device.
func TestSessionLateRing(t *testing.T) {
	r := newRig(t, false)
	g := guest(t, vhosttest.Options{Pairs: 2, Features: features})
	f, err := vhosttest.Dial(r.path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := errors.Join(f.Negotiate(g), f.SetMemory(g)); err != nil {
		t.Fatal(err)
	}
	for i := range g.Rx {
		if err := errors.Join(f.Enable(g.Rx[i], true), f.Enable(g.Tx[i], true)); err != nil {
			t.Fatal(err)
		}
	}
	for i := range g.Rx {
		if err := errors.Join(f.SetVring(g.Rx[i], 0), f.SetVring(g.Tx[i], 0)); err != nil {
			t.Fatal(err)
		}
		eventually(t, "the pairs that are set up", func() bool { d := r.device(); return d != nil && len(d.Rx()) == i+1 })
	}
}

// TestSessionMemorySlots adds and removes memory regions one by one.
func TestSessionMemorySlots(t *testing.T) {
	r := newRig(t, false)
	g := guest(t, vhosttest.Options{Features: features})
	f, err := vhosttest.Dial(r.path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := f.Negotiate(g); err != nil {
		t.Fatal(err)
	}
	if n, err := f.U64(36, nil); err != nil || n != vhost.MaxRegions {
		t.Fatalf("memory slots: %d, %v", n, err)
	}
	region := append(make([]byte, 8), vhosttest.Region(g.Regions()[0])...)
	far := g.Regions()[0]
	far.GuestAddr, far.UserAddr = 1<<40, 1<<41
	farAway := append(make([]byte, 8), vhosttest.Region(far)...)
	// QEMU sends each message once for every queue pair.
	for _, b := range [][]byte{region, farAway, region, farAway} {
		if answer, err := f.Call(vhosttest.AddMemReg, b, g.FD()); err != nil || binary.LittleEndian.Uint64(answer) != 0 {
			t.Fatalf("ADD_MEM_REG: %x, %v", answer, err)
		}
	}
	if st := r.Status(); st.Regions != 2 {
		t.Fatalf("%d regions", st.Regions)
	}
	for range 2 {
		if answer, err := f.Call(vhosttest.RemMemReg, farAway); err != nil || binary.LittleEndian.Uint64(answer) != 0 {
			t.Fatalf("REM_MEM_REG: %x, %v", answer, err)
		}
	}
	if st := r.Status(); st.Regions != 1 {
		t.Fatalf("%d regions after one was removed", st.Regions)
	}
	for _, q := range []*vhosttest.Queue{g.Rx[0], g.Tx[0]} {
		if err := f.SetVring(q, 0); err != nil {
			t.Fatal(err)
		}
		if err := f.Enable(q, true); err != nil {
			t.Fatal(err)
		}
	}
	r.waitRunning(t, true)
	r.echo(t, g, 1)
}

// TestSessionMTU: NET_SET_MTU is refused if its MTU is above the port's. The connection stays open.
func TestSessionMTU(t *testing.T) {
	r := newRig(t, false)
	g := guest(t, vhosttest.Options{Features: features})
	f := r.attach(t, g)
	for mtu, want := range map[uint64]uint64{9000: 0, 10: 1, 1 << 20: 1} {
		answer, err := f.U64(vhosttest.NetSetMTU, vhosttest.Number(mtu))
		if err != nil || answer != want {
			t.Fatalf("MTU %d: answer %d, %v", mtu, answer, err)
		}
	}
	r.waitRunning(t, true)
	eventually(t, "MTU", func() bool { d := r.device(); return d != nil && d.Tx()[0].MTU() == 9018 })
}

// TestSessionRefuses: each invalid message closes the connection, with one log line.
// The session then serves the next front end.
func TestSessionRefuses(t *testing.T) {
	text, err := os.Open(os.Args[0])
	if err != nil {
		t.Fatal(err)
	}
	defer text.Close()
	n, p := vhosttest.Number, vhosttest.Pair
	many := make([]int, 20)
	for i := range many {
		many[i] = int(text.Fd())
	}
	memory := memfd(t, 1<<20)
	readOnly, err := unix.Open(fmt.Sprintf("/proc/self/fd/%d", memory), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(readOnly)
	sealed := memfd(t, 1<<20)
	if _, err := unix.FcntlInt(uintptr(sealed), unix.F_ADD_SEALS, unix.F_SEAL_WRITE); err != nil {
		t.Fatal(err)
	}
	overlaid := overlayFile(t)
	tcp, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(tcp)
	region := append(p(1, 0), vhosttest.Region(vhost.RegionSpec{Size: 4096})...)
	rings := append(append(n(8192), n(0)...), 4, 0, 64, 0) // for 4 rings
	tests := []struct {
		name    string
		request uint32
		flags   uint32
		size    int // added to the size of the payload
		payload []byte
		fds     []int
		want    string
	}{
		{"unknown", 99, 1, 0, nil, nil, "request 99 is unknown"},
		{"hole in the table", 30, 1, 0, n(0), nil, "request 30 is unknown"},
		{"huge", 5, 1, 1 << 30, nil, nil, "payload of 1073741824 bytes"},
		{"version", 1, 2, 0, nil, nil, "protocol version 2"},
		{"reply", 1, 5, 0, nil, nil, "marked as a reply"},
		{"short", 2, 1, 0, n(0)[:4], nil, "SET_FEATURES: payload of 4 bytes, expected 8"},
		{"features", 2, 1, 0, n(1 << 63), nil, "were not offered"},
		{"protocol features", 16, 1, 0, n(1 << 62), nil, "were not offered"},
		{"vring", 8, 1, 0, p(77, 256), nil, "vring 77: expected an index below 4"},
		{"vring size", 8, 1, 0, p(0, 255), nil, "255 descriptors"},
		{"base", 10, 1, 0, p(0, 1<<16), nil, "no index of a split ring"},
		{"kick without descriptor", 12, 1, 0, n(0), nil, "0 descriptors, expected 1"},
		{"kick that is a file", 12, 1, 0, n(0), many[:1], "expected an eventfd"},
		{"descriptor not asked for", 1, 1, 0, nil, many[:1], "GET_FEATURES: descriptors came, expected none"},
		{"many descriptors", 5, 1, 0, append(p(1, 0), make([]byte, 32)...), many, "more than 8 descriptors"},
		{"memory without descriptors", 5, 1, 0, append(p(1, 0), make([]byte, 32)...), nil, "1 regions with 0 descriptors"},
		{"empty region", 5, 1, 0, append(p(1, 0), make([]byte, 32)...), many[:1], "is empty"},
		{"short file", 5, 1, 0, append(p(1, 0), vhosttest.Region(vhost.RegionSpec{Size: 1 << 40})...), []int{memory}, "is shorter than"},
		{"memory on a disk", 5, 1, 0, region, many[:1], "expected a file of memfd, tmpfs or hugetlbfs"},
		{"memory of an eventfd", 5, 1, 0, region, []int{newEvent(t)}, "anon_inode:[eventfd]\" is no shared memory"},
		{"memory to read only", 5, 1, 0, region, []int{readOnly}, "not open for reading and writing"},
		{"memory that is sealed", 5, 1, 0, region, []int{sealed}, "sealed against writing"},
		{"memory below an overlay", 5, 1, 0, region, []int{overlaid}, "is no shared memory"},
		{"region on a disk", 37, 1, 0, append(n(0), region[8:]...), many[:1], "is no shared memory"},
		{"log on a disk", 6, 1, 0, append(n(8), n(0)...), many[:1], "is no shared memory"},
		{"inflight buffer on a disk", 32, 1, 0, rings, many[:1], "is no shared memory"},
		{"channel that is a file", 21, 1, 0, nil, many[:1], "is no socket"},
		{"channel of TCP", 21, 1, 0, nil, []int{tcp}, "expected a unix stream socket"},
		{"enable", 18, 1, 0, p(0, 2), nil, "expected 0 or 1"},
		{"status", 39, 1, 0, n(256), nil, "more than 8 bits"},
		{"log", 6, 1, 0, append(n(1), n(0)...), nil, "0 descriptors"},
	}
	r := newRig(t, false)
	before := openFiles(t)
	for i, test := range tests {
		f, err := vhosttest.Dial(r.path)
		if err != nil {
			t.Fatal(err)
		}
		if err := f.SendRaw(test.request, test.flags, uint32(len(test.payload)+test.size), test.payload, test.fds...); err != nil {
			t.Fatalf("%s: %v", test.name, err)
		}
		_ = f.Conn.SetReadDeadline(time.Now().Add(30 * time.Second))
		if n, err := f.Conn.Read(make([]byte, 1)); n != 0 || err == nil || os.IsTimeout(err) {
			t.Fatalf("%s: not closed: %d, %v", test.name, n, err)
		}
		f.Close()
		eventually(t, test.name, func() bool { return r.Status().Breaks == uint64(i+1) })
		if got := r.Status().LastError; !strings.Contains(got, test.want) {
			t.Errorf("%s: %q, expected %q", test.name, got, test.want)
		}
	}
	if got := r.log.count("disconnected"); got != len(tests) {
		t.Errorf("%d log lines for %d connections", got, len(tests))
	}
	eventually(t, "descriptors closed", func() bool { return openFiles(t) <= before })
	r.attach(t, guest(t, vhosttest.Options{Features: features}))
}

// memfd makes a file of zeroed memory.
func memfd(t *testing.T, size int64) int {
	t.Helper()
	fd, err := unix.MemfdCreate("test", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	if err := unix.Ftruncate(fd, size); err != nil {
		t.Fatal(err)
	}
	return fd
}

func newEvent(t *testing.T) int {
	t.Helper()
	fd, err := unix.Eventfd(0, unix.EFD_NONBLOCK|unix.EFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	return fd
}

// overlayFile opens a file of a tmpfs through an overlay. The overlay's file system then answers fstat
// and fstatfs.
func overlayFile(t *testing.T) int {
	t.Helper()
	needRoot(t)
	tmpfs, merged := t.TempDir(), t.TempDir()
	if err := unix.Mount("tmpfs", tmpfs, "tmpfs", 0, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(tmpfs, unix.MNT_DETACH) })
	options := ""
	for _, dir := range []string{"lower", "upper", "work"} {
		if err := os.Mkdir(filepath.Join(tmpfs, dir), 0o700); err != nil {
			t.Fatal(err)
		}
		options += fmt.Sprintf(",%sdir=%s", dir, filepath.Join(tmpfs, dir))
	}
	if err := unix.Mount("overlay", merged, "overlay", 0, options[1:]); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(merged, unix.MNT_DETACH) })
	f, err := os.Create(filepath.Join(merged, "memory"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	if err := f.Truncate(1 << 20); err != nil {
		t.Fatal(err)
	}
	return int(f.Fd())
}

func needRoot(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, for mounts")
	}
}

func openFiles(t *testing.T) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}

// TestSessionBreak: after a fault, the session stops the device, writes one log line and signals the
// err eventfds. The session itself continues.
func TestSessionBreak(t *testing.T) {
	r := newRig(t, false)
	g := guest(t, vhosttest.Options{Features: features})
	f := r.attach(t, g)
	event, err := unix.Eventfd(0, unix.EFD_NONBLOCK|unix.EFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(event)
	if answer, err := f.Call(vhosttest.SetVringErr, vhosttest.Number(1), event); err != nil || answer[0] != 0 {
		t.Fatalf("SET_VRING_ERR: %x, %v", answer, err)
	}
	r.Break("vring 1: something hostile")
	r.Break("again")
	r.waitRunning(t, false)
	eventually(t, "disconnect", func() bool { return !r.Status().Connected })
	if !readable(event, 30*time.Second) {
		t.Error("the error descriptor was not signalled")
	}
	if r.log.count("something hostile") != 1 || r.log.count("again") != 0 || r.Status().Breaks != 1 {
		t.Errorf("log:\n%s", r.log)
	}
	_ = f.Conn.SetReadDeadline(time.Now().Add(30 * time.Second))
	if _, err := f.Conn.Read(make([]byte, 1)); err != io.EOF {
		t.Errorf("the connection: %v", err)
	}
	fresh := guest(t, vhosttest.Options{Features: features})
	r.attach(t, fresh)
	r.echo(t, fresh, 1)
}

// forgetful is a Backend whose Stop returns no positions, like an engine that has hung.
type forgetful struct{ *vhosttest.Engine }

func (f forgetful) Stop() ([]byte, error) {
	_, err := f.Engine.Stop()
	return nil, err
}

// TestBrokenSessionLeavesMemoryAlone: a front end has made the engine hang. Control must not read this
// front end's memory, because control would hang, too. The test truncates the memory file, so that a
// read would be logged.
func TestBrokenSessionLeavesMemoryAlone(t *testing.T) {
	for _, broken := range []bool{false, true} {
		r := &rig{engine: &vhosttest.Engine{}, path: filepath.Join(t.TempDir(), "vhost.sock"), log: &lines{}}
		var err error
		if r.Session, err = vhost.NewSession(r.config(false), forgetful{r.engine}); err != nil {
			t.Fatal(err)
		}
		r.run(t)
		g := guest(t, vhosttest.Options{Features: features})
		f := r.attach(t, g)
		r.engine.Kill() // the engine does not read the memory any more
		if err := unix.Ftruncate(g.FD(), 0); err != nil {
			t.Fatal(err)
		}
		if broken {
			r.Break("it has hung the engine")
		} else {
			f.Close()
		}
		eventually(t, "disconnect", func() bool { return !r.Status().Connected })
		if got := r.log.count("cannot read the position of a ring") == 0; got != broken {
			t.Errorf("broken %v: log\n%s", broken, r.log)
		}
	}
}

// TestSessionStartFails: the engine refuses the device, and the session closes the connection.
func TestSessionStartFails(t *testing.T) {
	r := newRig(t, false)
	r.engine.Refuse = true
	f, err := vhosttest.Dial(r.path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := f.Attach(guest(t, vhosttest.Options{Features: features})); err != nil {
		t.Fatal(err)
	}
	eventually(t, "disconnect", func() bool {
		st := r.Status()
		return st.Breaks == 1 && strings.Contains(st.LastError, "refused by the test")
	})
}

// TestSessionStalls: Close does not wait for the rest of an incomplete message.
func TestSessionStalls(t *testing.T) {
	r := newRig(t, false)
	f, err := vhosttest.Dial(r.path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	// Each byte arrives in time, but the whole message would take a minute.
	message := append([]byte{vhosttest.SetMemTable, 0, 0, 0, vhosttest.Version, 0, 0, 0, 8, 1, 0, 0}, make([]byte, 264)...)
	go func() {
		for _, b := range message {
			if _, err := f.Conn.Write([]byte{b}); err != nil {
				return
			}
			time.Sleep(200 * time.Millisecond)
		}
	}()
	eventually(t, "connection", func() bool { return r.Status().Connected })
	done := make(chan struct{})
	go func() { r.Close(); close(done) }()
	select {
	case <-done:
	case <-time.After(30 * time.Second):
		t.Fatal("Close waits for a stalled front end")
	}
}

// TestSessionRestore: another control process takes over a session while frames pass. No frame is
// lost.
func TestSessionRestore(t *testing.T) { eachLayout(t, sessionRestore) }

func sessionRestore(t *testing.T, layout uint64) {
	r := newRig(t, false)
	g := guest(t, vhosttest.Options{Features: features | layout, Interrupts: true})
	f := r.attach(t, g)
	r.echo(t, g, 1)
	parts := r.Snapshot()
	r.cancel() // ends the session of the old control process
	<-r.ended
	starts := r.engine.Starts
	s, err := vhost.Restore(r.config(false), r.engine, parts)
	if err != nil {
		t.Fatal(err)
	}
	r.Session = s
	r.run(t)
	if st := r.Status(); !st.Connected || !st.Running || len(st.Vrings) != 2 {
		t.Fatalf("restored: %+v", st)
	}
	r.echo(t, g, 2)
	if r.engine.Starts != starts {
		t.Fatal("the device was started again")
	}
	r.engine.Kill() // even without the engine, the restored session finds the record
	base, err := f.Stop(g.Tx[0])
	if err != nil || base != g.Tx[0].Start()+2 {
		t.Fatalf("stopped at %d, %v", base, err)
	}
	if err := f.SetVring(g.Tx[0], base); err != nil {
		t.Fatal(err)
	}
	r.waitRunning(t, true)
	r.echo(t, g, 3)
	f.Close()
	r.waitRunning(t, false)
	r.attach(t, guest(t, vhosttest.Options{Features: features})) // shows that the restored socket listens
}

// Restore refuses a state in which a kick, call or err descriptor is no eventfd.
func TestSessionRestoreRefusesEvents(t *testing.T) {
	for _, which := range []string{"kick", "call", "err"} {
		r := newRig(t, false)
		r.attach(t, guest(t, vhosttest.Options{Features: features}))
		part := r.Snapshot()[0]
		blob, fds := part.Blob, part.FDs
		file, err := os.CreateTemp(t.TempDir(), "")
		if err != nil {
			t.Fatal(err)
		}
		defer file.Close()
		dup, err := unix.FcntlInt(file.Fd(), unix.F_DUPFD_CLOEXEC, 3)
		if err != nil {
			t.Fatal(err)
		}
		altered := regexp.MustCompile(`"`+which+`":-?\d+`).ReplaceAll(blob, fmt.Appendf(nil, `"%s":%d`, which, len(fds)))
		if bytes.Equal(altered, blob) {
			t.Fatalf("no %s in %s", which, blob)
		}
		_, err = vhost.Restore(r.config(false), r.engine, []vhost.Part{{Blob: altered, FDs: append(fds, dup)}})
		if err == nil || !strings.Contains(err.Error(), "expected an eventfd") {
			t.Errorf("%s: %v", which, err)
		}
	}
}

// stuck is a Backend whose Stop never returns.
type stuck struct {
	*vhosttest.Engine
	reached, release chan struct{}
}

func (s *stuck) Stop() ([]byte, error) {
	close(s.reached)
	<-s.release
	return nil, io.EOF
}

// TestSessionUnanswered: a control process is killed before it has answered a request. The next
// control process answers it.
func TestSessionUnanswered(t *testing.T) {
	r := &rig{engine: &vhosttest.Engine{}, path: filepath.Join(t.TempDir(), "vhost.sock"), log: &lines{}}
	first := &stuck{r.engine, make(chan struct{}), make(chan struct{})}
	var err error
	if r.Session, err = vhost.NewSession(r.config(false), first); err != nil {
		t.Fatal(err)
	}
	r.run(t)
	cancel, ended := r.cancel, r.ended
	g := guest(t, vhosttest.Options{Features: features})
	f := r.attach(t, g)
	r.echo(t, g, 1)
	parts := r.Snapshot()
	if err := f.Send(vhosttest.GetVringBase, vhosttest.Version, vhosttest.Pair(1, 0)); err != nil {
		t.Fatal(err)
	}
	<-first.reached
	second, err := vhost.Restore(r.config(false), r.engine, parts)
	if err != nil {
		t.Fatal(err)
	}
	r.Session = second
	r.run(t)
	if b, err := f.Reply(vhosttest.GetVringBase); err != nil || binary.LittleEndian.Uint32(b[4:]) != 1 {
		t.Fatalf("position %x, %v", b, err)
	}
	cancel() // ends the first process
	close(first.release)
	<-ended
	if err := f.SetVring(g.Tx[0], 1); err != nil {
		t.Fatal(err)
	}
	r.waitRunning(t, true)
	r.echo(t, g, 2)
}

// TestSessionReplay opens the device in a second engine. It also requests a ring's position while no
// engine runs.
func TestSessionReplay(t *testing.T) { eachLayout(t, sessionReplay) }

func sessionReplay(t *testing.T, layout uint64) {
	r := newRig(t, false)
	g := guest(t, vhosttest.Options{Features: features | layout, Seed: 100})
	f := r.attach(t, g)
	r.echo(t, g, 1)
	r.engine.Kill()
	spec, fds, running := r.Spec(true)
	if !running {
		t.Fatal("not running")
	}
	var ds vhost.DeviceSpec
	if err := json.Unmarshal(spec, &ds); err != nil || !ds.Resume {
		t.Fatalf("%+v, %v", ds, err)
	}
	err := r.engine.Start(spec, fds)
	for _, fd := range fds {
		unix.Close(fd)
	}
	if err != nil {
		t.Fatal(err)
	}
	r.echo(t, g, 2)
	r.engine.Kill()
	if base, err := f.Stop(g.Tx[0]); err != nil || base != g.Tx[0].Start()+2 {
		t.Fatalf("stopped at %d, %v; expected %d, from guest memory or the record", base, err, g.Tx[0].Start()+2)
	}
}

// TestSessionReset resets a running device, first by RESET_DEVICE and then by a status of 0, and sets
// it up again.
func TestSessionReset(t *testing.T) {
	r := newRig(t, false)
	g := guest(t, vhosttest.Options{Features: features})
	f := r.attach(t, g)
	r.echo(t, g, 1)
	for _, reset := range []struct {
		request uint32
		payload []byte
	}{{vhosttest.ResetDevice, nil}, {vhosttest.SetStatus, vhosttest.Number(0)}} {
		if v, err := f.U64(reset.request, reset.payload); err != nil || v != 0 {
			t.Fatalf("reset by %d: %d, %v", reset.request, v, err)
		}
		r.waitRunning(t, false)
		for _, q := range []*vhosttest.Queue{g.Rx[0], g.Tx[0]} {
			if err := f.SetVring(q, q.Position()); err != nil {
				t.Fatal(err)
			}
			if err := f.Enable(q, true); err != nil {
				t.Fatal(err)
			}
		}
		if v, err := f.U64(vhosttest.SetStatus, vhosttest.Number(15)); err != nil || v != 0 {
			t.Fatalf("status: %d, %v", v, err)
		}
		if v, err := f.U64(vhosttest.GetStatus, nil); err != nil || v != 15 {
			t.Fatalf("status %d, %v", v, err)
		}
		r.waitRunning(t, true)
		r.echo(t, g, 2)
	}
}

// TestListen: the session replaces a socket on which no process listens. It refuses the path of a
// socket in use, and of any other file. Close removes the session's socket.
func TestListen(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "s")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	cfg := vhost.Config{Path: path}
	if _, err := vhost.NewSession(cfg, &vhosttest.Engine{}); err == nil || !strings.Contains(err.Error(), "in use") {
		t.Errorf("socket in use: %v", err)
	}
	l.Close()
	s, err := vhost.NewSession(cfg, &vhosttest.Engine{})
	if err != nil {
		t.Fatalf("dead socket: %v", err)
	}
	s.Close()
	if _, err := os.Lstat(path); !os.IsNotExist(err) {
		t.Errorf("socket left behind: %v", err)
	}
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := vhost.NewSession(cfg, &vhosttest.Engine{}); err == nil || !strings.Contains(err.Error(), "is no socket") {
		t.Errorf("file: %v", err)
	}
}

// Files returns duplicates of the guest's memory descriptors, and nothing without a guest.
func TestFilesOfASession(t *testing.T) {
	r := newRig(t, false)
	if fds := r.Files(); len(fds) != 0 {
		t.Fatalf("%d files without a guest", len(fds))
	}
	g, err := vhosttest.New(vhosttest.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer g.Close()
	f, err := vhosttest.Dial(r.path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := f.Attach(g); err != nil {
		t.Fatal(err)
	}
	var want unix.Stat_t
	if err := unix.Fstat(g.FD(), &want); err != nil {
		t.Fatal(err)
	}
	fds := r.Files()
	memory := 0
	for _, fd := range fds {
		var st unix.Stat_t
		if err := unix.Fstat(fd, &st); err != nil {
			t.Fatal(err)
		}
		if st.Ino == want.Ino && st.Dev == want.Dev {
			memory++
		}
		unix.Close(fd)
	}
	if memory != len(g.Regions()) {
		t.Errorf("%d of %d files are the guest's memory, want %d", memory, len(fds), len(g.Regions()))
	}
}

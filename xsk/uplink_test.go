// SPDX-License-Identifier: Apache-2.0

package xsk

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"weft/internal/testnet"
	"weft/packet"
	"weft/port"
	"weft/port/porttest"
)

// rig is a test host with an uplink, and a peer host at the other end of a veth pair.
type rig struct {
	t          *testing.T
	host, peer *testnet.Namespace
	peerMAC    net.HardwareAddr
	hostMAC    net.HardwareAddr
}

const (
	hostAddr, peerAddr   = "10.1.0.1", "10.1.0.2"
	hostAddr6, peerAddr6 = "fd00::1", "fd00::2"
	vxlanPort            = 4789
)

var ownEndpoints = []netip.AddrPort{
	netip.MustParseAddrPort("10.1.0.1:4789"),
	netip.MustParseAddrPort("[fd00::1]:4789"),
	{}, // unspecified addresses must be skipped
}

func newRig(t *testing.T, queues int) *rig {
	t.Helper()
	r := &rig{t: t, host: testnet.New(t), peer: testnet.New(t)}
	n := fmt.Sprint(queues)
	r.host.Exec("ip", "link", "add", "up0", "numtxqueues", n, "numrxqueues", n, "type", "veth",
		"peer", "name", "peer0", "netns", r.peer.Name, "numtxqueues", n, "numrxqueues", n)
	for _, end := range []struct {
		n         *testnet.Namespace
		dev       string
		addresses []string
	}{{r.host, "up0", []string{hostAddr + "/24", hostAddr6 + "/64"}}, {r.peer, "peer0", []string{peerAddr + "/24", peerAddr6 + "/64"}}} {
		end.n.Exec("ip", "link", "set", end.dev, "addrgenmode", "none", "up")
		for _, a := range end.addresses {
			end.n.Exec("ip", "addr", "add", a, "dev", end.dev, "nodad")
		}
	}
	mac := func(n *testnet.Namespace, dev string) (mac net.HardwareAddr) {
		n.Do(func() {
			ifi, err := net.InterfaceByName(dev)
			if err != nil {
				t.Fatal(err)
			}
			mac = ifi.HardwareAddr
		})
		return
	}
	r.hostMAC, r.peerMAC = mac(r.host, "up0"), mac(r.peer, "peer0")
	return r
}

func (r *rig) trySetup(cfg Config) (u *Uplink, err error) {
	if cfg.Dev == "" {
		cfg.Dev = "up0"
	}
	if cfg.RingSize == 0 {
		cfg.RingSize = 256
	}
	r.host.Do(func() { u, err = Setup(cfg) })
	return
}

func (r *rig) setup(cfg Config) *Uplink {
	r.t.Helper()
	u, err := r.trySetup(cfg)
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() {
		if u.region != nil {
			u.Close()
		}
	})
	if err := u.SetEndpoints(ownEndpoints); err != nil {
		r.t.Fatal(err)
	}
	return u
}

func (r *rig) listen(n *testnet.Namespace, addr string) *net.UDPConn {
	r.t.Helper()
	var conn *net.UDPConn
	n.Do(func() {
		c, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.MustParseAddrPort(addr)))
		if err != nil {
			r.t.Fatal(err)
		}
		conn = c
	})
	r.t.Cleanup(func() { conn.Close() })
	return conn
}

func (r *rig) dial(addr string) *net.UDPConn {
	r.t.Helper()
	var conn *net.UDPConn
	r.peer.Do(func() {
		c, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(netip.MustParseAddrPort(addr)))
		if err != nil {
			r.t.Fatal(err)
		}
		conn = c
	})
	r.t.Cleanup(func() { conn.Close() })
	return conn
}

func open(t testing.TB, u *Uplink) *device {
	t.Helper()
	text, err := u.Spec()
	if err != nil {
		t.Fatal(err)
	}
	d, err := Open(text, porttest.Duplicates(t, u.FDs()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(d.Close)
	return d.(*device)
}

// recv receives frames on all queues of d and returns them. It returns when it has want frames, or
// when no more arrive for a while.
func recv(t testing.TB, d port.Device, want int) [][]byte {
	t.Helper()
	var got [][]byte
	b := new(packet.Batch)
	for last := time.Now(); len(got) < want && time.Since(last) < 30*time.Second; {
		for _, rx := range d.Rx() {
			b.Reset()
			n := rx.Recv(b)
			if n < 0 {
				t.Fatal(rx.Fault())
			}
			for i := range n {
				frame := make([]byte, b.Frames[i].Len())
				b.Gather(&b.Frames[i], frame)
				got = append(got, frame)
				last = time.Now()
			}
			rx.Release()
		}
	}
	return got
}

func waiting(t testing.TB, d port.Device) (got [][]byte) {
	t.Helper()
	for {
		n := 0
		for _, rx := range d.Rx() {
			if rx.Arm() {
				n++
			}
		}
		if n == 0 {
			return got
		}
		got = append(got, recv(t, d, 1)...)
	}
}

func udpPayload(frame []byte) []byte {
	if binary.BigEndian.Uint16(frame[12:]) == 0x86dd {
		return frame[14+40+8:]
	}
	length := binary.BigEndian.Uint16(frame[14+2:])
	return frame[14+20+8 : 14+length]
}

func pattern(n, seed int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i*7 + seed)
	}
	return b
}

func write(t testing.TB, c net.Conn, b []byte) {
	t.Helper()
	if _, err := c.Write(b); err != nil {
		t.Fatal(err)
	}
}

func readOne(t testing.TB, c *net.UDPConn) []byte {
	t.Helper()
	b := make([]byte, 1<<16)
	_ = c.SetReadDeadline(time.Now().Add(30 * time.Second))
	n, err := c.Read(b)
	if err != nil {
		t.Fatal(err)
	}
	return b[:n]
}

var modes = []string{ModeCopy, ModeGeneric}

func TestDatagramsForOwnEndpointsArrive(t *testing.T) {
	for _, mode := range modes {
		for _, queues := range []int{1, 2} {
			t.Run(fmt.Sprintf("%s/%d", mode, queues), func(t *testing.T) {
				r := newRig(t, queues)
				u := r.setup(Config{Mode: mode, FrameSize: []int{4096, 2048}[queues-1]})
				d := open(t, u)
				if len(d.Rx()) != queues || len(d.Tx()) != queues {
					t.Fatalf("%d receive and %d transmit queues", len(d.Rx()), len(d.Tx()))
				}
				for _, to := range []string{hostAddr + ":4789", "[" + hostAddr6 + "]:4789"} {
					for i := range 8 { // eight flows spread over the queues
						conn := r.dial(to)
						for _, size := range []int{0, 1, 8, 150 - i, 1000, 1452} {
							want := pattern(size, i)
							write(t, conn, want)
							got := recv(t, d, 1)
							if len(got) != 1 || !bytes.Equal(udpPayload(got[0]), want) {
								t.Fatalf("%d bytes to %s: %d frames", size, to, len(got))
							}
						}
					}
				}
			})
		}
	}
}

func TestAllElseStaysWithTheKernel(t *testing.T) {
	for _, mode := range modes {
		t.Run(mode, func(t *testing.T) {
			r := newRig(t, 1)
			u := r.setup(Config{Mode: mode})
			d := open(t, u)
			r.peer.Exec("ping", "-q", "-c", "3", "-i", "0.05", "-W", "2", hostAddr)
			r.peer.Exec("ping", "-q", "-c", "3", "-i", "0.05", "-W", "2", hostAddr6)
			r.host.Exec("ping", "-q", "-c", "3", "-i", "0.05", "-W", "2", "-s", "4000", peerAddr)

			other := r.listen(r.host, hostAddr+":4790")
			write(t, r.dial(hostAddr+":4790"), []byte("other port"))
			if got := readOne(t, other); string(got) != "other port" {
				t.Errorf("%q", got)
			}
			// Fragments of datagrams belong to the kernel, which reassembles them.
			own := r.listen(r.host, hostAddr+":4789")
			write(t, r.dial(hostAddr+":4789"), pattern(5000, 1))
			if got := readOne(t, own); !bytes.Equal(got, pattern(5000, 1)) {
				t.Errorf("%d bytes", len(got))
			}
			r.tcp()
			if got := waiting(t, d); len(got) != 0 {
				t.Errorf("the switch took %x", got[0])
			}
			// Datagrams to endpoints that were removed belong to the kernel.
			if err := u.SetEndpoints(nil); err != nil {
				t.Fatal(err)
			}
			write(t, r.dial(hostAddr+":4789"), []byte("back"))
			if got := readOne(t, own); string(got) != "back" {
				t.Errorf("%q", got)
			}
		})
	}
}

func (r *rig) tcp() {
	r.t.Helper()
	var l net.Listener
	var c net.Conn
	var err error
	r.host.Do(func() { l, err = net.Listen("tcp", hostAddr+":22022") })
	if err != nil {
		r.t.Fatal(err)
	}
	defer l.Close()
	r.peer.Do(func() { c, err = net.DialTimeout("tcp", hostAddr+":22022", 30*time.Second) })
	if err != nil {
		r.t.Fatal(err)
	}
	defer c.Close()
	in, err := l.Accept()
	if err != nil {
		r.t.Fatal(err)
	}
	defer in.Close()
	_ = in.SetDeadline(time.Now().Add(30 * time.Second))
	go func() {
		_, _ = c.Write(pattern(1<<20, 3))
		c.Close()
	}()
	got, err := io.ReadAll(in)
	if err != nil || !bytes.Equal(got, pattern(1<<20, 3)) {
		r.t.Errorf("TCP: %d bytes, %v", len(got), err)
	}
}

func (r *rig) outbound(payload []byte, port uint16) []byte {
	f := append(append(append([]byte{}, r.peerMAC...), r.hostMAC...), 0x08, 0x00)
	ip := make([]byte, 20)
	ip[0], ip[8], ip[9] = 0x45, 64, 17
	binary.BigEndian.PutUint16(ip[2:], uint16(28+len(payload)))
	copy(ip[12:], net.ParseIP(hostAddr).To4())
	copy(ip[16:], net.ParseIP(peerAddr).To4())
	sum := uint32(0)
	for i := 0; i < 20; i += 2 {
		sum += uint32(binary.BigEndian.Uint16(ip[i:]))
	}
	binary.BigEndian.PutUint16(ip[10:], ^uint16(sum+sum>>16))
	udp := make([]byte, 8)
	binary.BigEndian.PutUint16(udp, vxlanPort)
	binary.BigEndian.PutUint16(udp[2:], port)
	binary.BigEndian.PutUint16(udp[4:], uint16(8+len(payload)))
	return append(append(append(f, ip...), udp...), payload...)
}

func fill(t testing.TB, b *packet.Batch, frames [][]byte) {
	t.Helper()
	b.Reset()
	for _, whole := range frames {
		mem, err := unix.Mmap(-1, 0, len(whole), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
		if err != nil {
			t.Fatal(err)
		}
		copy(mem, whole)
		f, header := b.Next()
		n := copy(header[:100], whole)
		for at := n; at < len(whole); at += 500 {
			b.AddSpan(f, address(mem[at:]), uint32(min(500, len(whole)-at)))
		}
		b.Commit(f, n)
	}
}

var order = func() (o [packet.BatchSize]uint8) {
	for i := range o {
		o[i] = uint8(i)
	}
	return
}()

func TestSentFramesReachThePeer(t *testing.T) {
	for _, mode := range modes {
		t.Run(mode, func(t *testing.T) {
			r := newRig(t, 1)
			d := open(t, r.setup(Config{Mode: mode}))
			at := r.listen(r.peer, peerAddr+":9999")
			_ = at.SetReadBuffer(4 << 20)
			b := new(packet.Batch)
			tx := d.Tx()[0]
			// The test sends more frames than the UMEM has, and flushes more of them at once than one
			// system call sends.
			sent := 0
			for round := range 10 {
				var want [][]byte
				for batch := range 2 {
					var frames [][]byte
					for i := range packet.BatchSize {
						p := pattern(1+(round*64+batch*32+i)*2, i)
						want = append(want, p)
						frames = append(frames, r.outbound(p, 9999))
					}
					fill(t, b, frames)
					if n := tx.Send(b, order[:]); n != packet.BatchSize {
						t.Fatalf("took %d", n)
					}
				}
				tx.Flush()
				for i := range want {
					if got := readOne(t, at); !bytes.Equal(got, want[i]) {
						t.Fatalf("frame %d: %d bytes, want %d", sent, len(got), len(want[i]))
					}
					sent++
				}
			}
			if tx.MTU() != 1514 {
				t.Errorf("MTU %d", tx.MTU())
			}
			// While the link is down, the NIC sends nothing. Send stops when all UMEM frames are in
			// use.
			r.host.Exec("ip", "link", "set", "up0", "down")
			took, n := 0, 0
			for range 20 {
				n = tx.Send(b, order[:])
				took += n
				tx.Flush()
			}
			if n != 0 || took > 256 {
				t.Errorf("with the link down Send took %d frames, %d in the last call", took, n)
			}
			r.host.Exec("ip", "link", "set", "up0", "up")
			tx.Flush() // Flush sends waiting frames even if no new frames were written
			d.allFree(t)
			postpones(t, tx, b, order[:])
			d.allFree(t)
		})
	}
}

// postpones checks that Postpone delays the system call until maxPostponed frames wait or until Flush
// is called.
func postpones(t *testing.T, tx port.Tx, b *packet.Batch, order []uint8) {
	t.Helper()
	q := tx.(*txQueue)
	for n, want := range []bool{true, false, true} {
		if took := tx.Send(b, order); took != len(order) {
			t.Fatalf("took %d", took)
		}
		if owed := tx.Postpone(); owed != want {
			t.Fatalf("batch %d postponed: %v, want %v", n, owed, want)
		}
		if waiting := q.published - q.tx.consumer.Load(); q.published != q.next || (waiting != 0) != want {
			t.Fatalf("batch %d: %d frames wait for a system call", n, waiting)
		}
	}
	tx.Flush()
	if q.published != q.tx.consumer.Load() {
		t.Fatal("a flush without anything new leaves the frames")
	}
}

// allFree waits until the kernel has completed every sent frame.
func (d *device) allFree(t *testing.T) {
	t.Helper()
	for i, q := range d.Tx() {
		tx := q.(*txQueue)
		for until := time.Now().Add(30 * time.Second); tx.freeCount != len(tx.free) && time.Now().Before(until); {
			tx.Flush()
			tx.reap()
			time.Sleep(time.Millisecond)
		}
		if tx.freeCount != len(tx.free) {
			t.Errorf("queue %d: %d of %d sending frames are free", i, tx.freeCount, len(tx.free))
		}
	}
}

func TestAWaitingWorkerIsWoken(t *testing.T) {
	r := newRig(t, 1)
	d := open(t, r.setup(Config{}))
	rx := d.Rx()[0]
	if rx.Polled() || rx.Arm() {
		t.Fatal("Arm reports frames, or Polled is true, without a frame")
	}
	readable := func(ms int) bool {
		p := []unix.PollFd{{Fd: int32(rx.WaitFD()), Events: unix.POLLIN}}
		n, _ := unix.Poll(p, ms)
		return n == 1 && p[0].Revents&unix.POLLIN != 0
	}
	if readable(0) {
		t.Fatal("the descriptor is readable without a frame")
	}
	write(t, r.dial(hostAddr+":4789"), []byte("wake"))
	if !readable(30_000) || !rx.Arm() {
		t.Fatal("the frame did not make the descriptor readable")
	}
	rx.Disarm()
	rx.Woken()
	if got := recv(t, d, 1); len(got) != 1 || readable(0) || rx.Arm() {
		t.Errorf("%d frames", len(got))
	}
}

// While the worker is awake, the socket is in no epoll set. Otherwise the kernel would look for
// waiters at every frame.
func TestNobodyWaitsWhileAwake(t *testing.T) {
	r := newRig(t, 1)
	rx := open(t, r.setup(Config{})).Rx()[0]
	waits := func() bool {
		info, err := os.ReadFile(fmt.Sprintf("/proc/self/fdinfo/%d", rx.WaitFD()))
		if err != nil {
			t.Fatal(err)
		}
		return strings.Contains(string(info), "tfd:")
	}
	for range 2 {
		if waits() {
			t.Error("the socket is waited on while the worker is awake")
		}
		rx.Arm()
		rx.Arm() // a second Arm has no effect
		if !waits() {
			t.Error("the socket is not waited on while the worker sleeps")
		}
		rx.Disarm()
		rx.Disarm()
	}
}

func TestStatusTellsModeAndReasons(t *testing.T) {
	r := newRig(t, 2)
	u := r.setup(Config{Queues: 1})
	s := u.Status()
	if s.Mode != ModeCopy || s.Driver != "veth" || s.MTU != 1500 || u.MTU() != 1500 || len(s.Queues) != 1 || s.Queues[0].ZeroCopy || !s.Queues[0].Sends {
		t.Errorf("%+v", s)
	}
	if len(s.Refused) != 1 || s.Refused[0].Mode != ModeZeroCopy || !strings.Contains(s.Refused[0].Reason, "driver veth has no AF_XDP zero-copy") {
		t.Errorf("refused: %+v", s.Refused)
	}
	if strings.Join(s.Endpoints, " ") != "10.1.0.1:4789 [fd00::1]:4789" {
		t.Errorf("endpoints: %v", s.Endpoints)
	}
	if len(s.Notes) != 1 || !strings.Contains(s.Notes[0], "1 of the device's 2 queues are not served") {
		t.Errorf("notes: %v", s.Notes)
	}
	if out := r.host.Exec("ip", "link", "show", "up0"); !strings.Contains(out, "xdp") || strings.Contains(out, "xdpgeneric") {
		t.Errorf("not attached to the driver: %s", out)
	}
}

func TestADeviceThatGoesIsTold(t *testing.T) {
	r := newRig(t, 1)
	u := r.setup(Config{})
	d := open(t, u)
	if notes := u.Status().Notes; len(notes) != 0 {
		t.Errorf("notes: %v", notes)
	}
	r.host.Exec("ip", "link", "del", "up0")
	if notes := u.Status().Notes; len(notes) != 1 || !strings.Contains(notes[0], "the device is gone") {
		t.Errorf("notes: %v", notes)
	}
	// After the NIC is gone, the methods of its queues still return.
	b := new(packet.Batch)
	fill(t, b, [][]byte{r.outbound([]byte("nowhere"), 9)})
	if n := d.Tx()[0].Send(b, order[:1]); n != 1 || b.Frames[0].Drop != packet.DropNone {
		t.Errorf("Send took %d frames, drop %v", n, b.Frames[0].Drop)
	}
	d.Tx()[0].Flush()
	if n := d.Rx()[0].Recv(b); n != 0 || d.Rx()[0].Arm() {
		t.Errorf("received %d", n)
	}
}

func TestEndpointsAreReplaced(t *testing.T) {
	r := newRig(t, 1)
	u := r.setup(Config{})
	many := func(first, n int) (list []netip.AddrPort) {
		for i := first; i < first+n; i++ {
			list = append(list, netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 2, byte(i >> 8), byte(i)}), 4789))
		}
		return
	}
	for _, set := range [][]netip.AddrPort{many(0, 3), many(2, 3), many(5, maxEndpoints), many(500, maxEndpoints), nil, many(1, 1)} {
		if err := u.SetEndpoints(set); err != nil {
			t.Fatal(err)
		}
		have, err := u.currentEndpoints()
		if err != nil || len(have) != len(set) {
			t.Fatalf("%d endpoints, want %d: %v", len(have), len(set), err)
		}
		for _, e := range set {
			if !have[makeEndpointKeys(e)[0]] {
				t.Fatalf("%v is missing", e)
			}
		}
	}
	if err := u.SetEndpoints(many(0, maxEndpoints+1)); err == nil || len(u.Status().Endpoints) != 1 {
		t.Errorf("too many endpoints: %v", err)
	}
	both := append(many(1, 1), netip.MustParseAddrPort("[fd00::1]:0"))
	if err := u.SetEndpoints(both); err != nil || !slices.Equal(u.Status().Endpoints, []string{"10.2.0.1:4789", "gre to fd00::1"}) {
		t.Errorf("endpoint of GRE: %v, %q", err, u.Status().Endpoints)
	}
}

func TestControlIsTakenOverWithoutTouchingTheDevice(t *testing.T) {
	r := newRig(t, 2)
	u := r.setup(Config{})
	d := open(t, u)
	before := u.Status()
	info, err := u.link.Info()
	if err != nil {
		t.Fatal(err)
	}
	blob, fds, err := u.Snapshot()
	if err != nil {
		t.Fatal(err)
	}
	kept := porttest.Duplicates(t, fds)
	u.Release()

	write(t, r.dial(hostAddr+":4789"), []byte("between"))
	if got := recv(t, d, 1); len(got) != 1 || string(udpPayload(got[0])) != "between" {
		t.Fatalf("received %d frames without control", len(got))
	}
	second, err := Restore(blob, kept)
	if err != nil {
		t.Fatal(err)
	}
	defer second.Close()
	if after := second.Status(); fmt.Sprint(after) != fmt.Sprint(before) {
		t.Errorf("%+v\nbefore %+v", after, before)
	}
	if again, err := second.link.Info(); err != nil || again.ID != info.ID || again.Program != info.Program {
		t.Errorf("link %+v, was %+v: %v", again, info, err)
	}
	if err := second.SetEndpoints(ownEndpoints[:1]); err != nil {
		t.Fatal(err)
	}
	write(t, r.dial(hostAddr+":4789"), []byte("after"))
	if got := recv(t, d, 1); len(got) != 1 || string(udpPayload(got[0])) != "after" {
		t.Fatalf("received %d frames after Restore", len(got))
	}
	// Close detaches the XDP program even if other processes have it open.
	second.Close()
	if out := r.host.Exec("ip", "link", "show", "up0"); strings.Contains(out, "xdp") {
		t.Errorf("still attached: %s", out)
	}
	if _, err := r.trySetup(Config{}); !errors.As(err, new(*refusedError)) || !strings.Contains(err.Error(), "has an AF_XDP socket already") {
		t.Errorf("the engine's sockets still hold the queue: %v", err)
	}
	d.Close()
	u, err = r.trySetup(Config{}) // the kernel may still be freeing the closed sockets' queues
	if err != nil {
		t.Fatal(err)
	}
	u.Close()
}

func TestABadSnapshotIsRefusedAndOwnsItsDescriptors(t *testing.T) {
	r := newRig(t, 1)
	u := r.setup(Config{})
	blob, fds, err := u.Snapshot()
	if err != nil {
		t.Fatal(err)
	}
	before := descriptors(t)
	for name, c := range map[string]struct {
		blob string
		fds  []int
	}{
		"no JSON":           {"{", fds},
		"too few":           {string(blob), fds[1:]},
		"wrong order":       {string(blob), append(append([]int{}, fds[1:]...), fds[0])},
		"impossible spec":   {strings.Replace(string(blob), `"ring_size":256`, `"ring_size":255`, 1), fds},
		"no frames for MTU": {strings.Replace(string(blob), `"mtu":1500`, `"mtu":5000`, 1), fds},
	} {
		if got, err := Restore([]byte(c.blob), porttest.Duplicates(t, c.fds)); err == nil {
			got.Release()
			t.Errorf("%s was taken", name)
		}
		if after := descriptors(t); after > before {
			t.Errorf("%s: %d descriptors before, %d after", name, before, after)
		}
	}
	for _, text := range []string{"", `{"queues":1}`, `{"dev":"up0","queues":1,"tx_queues":1,"frame_size":4096,"ring_size":1024,"mtu":1500}`} {
		if d, err := Open([]byte(text), porttest.Duplicates(t, u.FDs())); err == nil {
			d.Close()
			t.Errorf("%q was taken", text)
		}
		if after := descriptors(t); after > before {
			t.Errorf("%q: %d descriptors before, %d after", text, before, after)
		}
	}
}

func TestRefusalsAreNamed(t *testing.T) {
	r := newRig(t, 2)
	for _, c := range []struct {
		cfg    Config
		state  string
		want   string
		effect string
	}{
		{cfg: Config{Dev: "nosuch"}, want: `af_xdp: no network device "nosuch"`},
		{cfg: Config{Mode: "fast"}, want: `mode "fast": expected auto, zerocopy, copy or generic`},
		{cfg: Config{Queues: 3}, want: "too few queues: 3 asked for, the device has 2 (ethtool -L up0 combined 3"},
		{cfg: Config{Queues: 65}, want: "65 queues: expected 1 to 64"},
		{cfg: Config{FrameSize: 1500}, want: "frame size 1500: expected 2048 or 4096"},
		{cfg: Config{RingSize: 100}, want: "ring size 100: expected a power of two from 64 to 8192"},
		{cfg: Config{Mode: ModeZeroCopy}, want: "zerocopy: driver veth has no AF_XDP zero-copy"},
		{
			cfg: Config{}, state: "ip link set up0 mtu 9300", effect: "ip link set up0 mtu 1500",
			want: "MTU too large for several frames: MTU 9300, they take up to 9216 (ip link set dev up0 mtu 9216)",
		},
		{cfg: Config{Channels: 3}, want: "channels=3: the device has at most 2 queues"},
		{cfg: Config{Channels: 65}, want: "65 channels: expected 1 to 64"},
		{cfg: Config{Queues: 1, Steer: true}, want: "rss=served: driver veth cannot steer traffic to queues (operation not supported): serve all 2 queues, or set channels=1"},
		{cfg: Config{Mode: ModeCopy, Queues: 1}, state: "ethtool -L up0 rx 1 tx 1", effect: "ethtool -L up0 rx 2 tx 2",
			want: "too few queues on up0 for XDP: a veth needs as many receive queues as its peer has transmit queues"},
	} {
		if c.state != "" {
			r.host.Exec(strings.Fields(c.state)...)
		}
		before := descriptors(t)
		u, err := r.trySetup(c.cfg)
		if err == nil {
			u.Close()
			t.Errorf("%+v was not refused", c.cfg)
		} else if !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%+v: %q, want %q", c.cfg, err, c.want)
		}
		if after := descriptors(t); after > before {
			t.Errorf("%+v: %d descriptors before, %d after", c.cfg, before, after)
		}
		if c.effect != "" {
			r.host.Exec(strings.Fields(c.effect)...)
		}
	}
	// Setup leaves the XDP program of another process in place, even if it is a copy of Weft's.
	first := r.setup(Config{})
	info, _ := first.link.Info()
	_, err := r.trySetup(Config{Mode: ModeGeneric})
	if want := fmt.Sprintf("another XDP program is attached: weft_uplink, id %d; detach it first (ip link set dev up0 xdp off), or ask for replace=on", info.Program); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("%v, want %q", err, want)
	}
	dev := &netdev{}
	r.host.Do(func() {
		if dev, err = inspect("up0"); err != nil {
			t.Fatal(err)
		}
		u := &Uplink{spec: first.spec}
		if err := u.attach(dev, ModeCopy); err == nil || !strings.Contains(err.Error(), "another XDP program is attached to up0") {
			t.Errorf("the kernel let us: %v", err)
		}
	})
	if again, err := first.link.Info(); err != nil || again.Program != info.Program {
		t.Errorf("the other's program was disturbed: %v", err)
	}
}

// explain has texts for errnos that this machine does not produce, too.
func TestErrnosHaveWords(t *testing.T) {
	dev := &netdev{name: "eth0", driver: "ice", mtu: 3000, frame: 4096}
	for _, c := range []struct {
		failed step
		mode   string
		errno  unix.Errno
		want   string
	}{
		{stepSocket, ModeCopy, unix.EPERM, "CAP_NET_RAW"},
		{stepSocket, ModeCopy, unix.EAFNOSUPPORT, "CONFIG_XDP_SOCKETS"},
		{stepMemory, ModeCopy, unix.ENOBUFS, "ulimit -l"},
		{stepRings, ModeCopy, unix.ENOPROTOOPT, "the kernel is too old"},
		{stepRings, ModeCopy, unix.EOPNOTSUPP, "the kernel is too old"},
		{stepLoad, ModeCopy, unix.EPERM, "CAP_BPF"},
		{stepAttach, ModeCopy, unix.EPERM, "CAP_NET_ADMIN"},
		{stepAttach, ModeCopy, unix.EOPNOTSUPP, "driver ice runs no XDP programs"},
		{stepAttach, ModeCopy, unix.ERANGE, "lower the MTU of eth0"},
		{stepAttach, ModeCopy, unix.EINVAL, "the MTU (3000)"},
		{stepBind, ModeZeroCopy, unix.EINVAL, "driver ice refused zero-copy on queue 1"},
		{stepBind, ModeCopy, unix.ENODEV, "device eth0 is gone"},
		{stepBind, ModeCopy, unix.EINVAL, "bind to queue 1: deep: invalid argument"},
		{stepMap, ModeCopy, unix.ENOMEM, "out of memory"},
	} {
		got := explain(c.failed, c.mode, dev, 1, fmt.Errorf("deep: %w", c.errno))
		if !strings.Contains(got.Error(), c.want) || !errors.Is(got, c.errno) {
			t.Errorf("step %d, %v: %q, want %q", c.failed, c.errno, got, c.want)
		}
	}
	jumbo := &netdev{name: "eth0", driver: "ice", mtu: 9000, frame: 4096}
	for _, c := range []struct {
		failed step
		errno  unix.Errno
	}{{stepLoad, unix.EINVAL}, {stepBind, unix.EINVAL}, {stepBind, unix.EOPNOTSUPP}} {
		const want = "an MTU of 9000 needs frames in several buffers, which the kernel (before Linux 6.6) or driver ice does not support in this mode: ip link set dev eth0 mtu 3822"
		if got := explain(c.failed, ModeZeroCopy, jumbo, 1, c.errno); !strings.Contains(got.Error(), want) {
			t.Errorf("step %d, %v: %q, want %q", c.failed, c.errno, got, want)
		}
	}
	joined := &refusedError{Dev: "eth0", Refusals: []Refusal{{ModeZeroCopy, "a"}, {ModeCopy, "a"}, {ModeGeneric, "b"}}}
	if got := joined.Error(); got != "af_xdp on eth0: zerocopy, copy: a; generic: b" {
		t.Errorf("%q", got)
	}
}

func TestMissingPrivilegeIsNamed(t *testing.T) {
	r := newRig(t, 1)
	child := reexec(t, "setup")
	child.Path, child.Args = "/proc/self/exe", []string{child.Path}
	child.SysProcAttr.Credential = &syscall.Credential{Uid: 65534, Gid: 65534}
	var out []byte
	var err error
	r.host.Do(func() { out, err = child.CombinedOutput() })
	if err != nil || !strings.Contains(string(out), "zerocopy, copy, generic: missing privilege: loading an XDP program needs CAP_BPF and CAP_NET_ADMIN") {
		t.Errorf("%s, %v", out, err)
	}
}

func TestNothingIsAllocatedAFrame(t *testing.T) {
	r := newRig(t, 1)
	d := open(t, r.setup(Config{}))
	rx, tx := d.Rx()[0], d.Tx()[0]
	fd, err := r.dial(hostAddr + ":4789").File()
	if err != nil {
		t.Fatal(err)
	}
	defer fd.Close()
	out, b := new(packet.Batch), new(packet.Batch)
	fill(t, out, [][]byte{r.outbound(pattern(900, 1), 9), r.outbound(pattern(90, 1), 9)})
	payload, frames := pattern(1000, 1), 0
	raw := int(fd.Fd())
	if got := testing.AllocsPerRun(200, func() {
		for range 4 {
			_, _ = unix.Write(raw, payload)
		}
		b.Reset()
		frames += rx.Recv(b)
		tx.Send(out, order[:2])
		tx.Flush()
		rx.Release()
		rx.Arm()
		rx.Disarm()
	}); got != 0 {
		t.Errorf("a pass makes %v allocations, want 0", got)
	}
	if frames < 400 {
		t.Errorf("only %d frames came", frames)
	}
}

func TestNothingIsLeaked(t *testing.T) {
	r := newRig(t, 2)
	cycle := func(mode string) {
		u, err := r.trySetup(Config{Mode: mode})
		if err != nil {
			t.Fatal(err)
		}
		text, _ := u.Spec()
		d, err := Open(text, porttest.Duplicates(t, u.FDs()))
		if err != nil {
			t.Fatal(err)
		}
		u.Status()
		d.Close()
		d.Close() // a second Close has no effect
		u.Close()
	}
	cycle(ModeCopy)
	before := descriptors(t)
	for i := range 4 {
		cycle(modes[i%2])
	}
	if after := descriptors(t); after > before {
		t.Errorf("%d descriptors before, %d after", before, after)
	}
	if out := r.host.Exec("ip", "link", "show", "up0"); strings.Contains(out, "xdp") {
		t.Errorf("still attached: %s", out)
	}
}

func descriptors(t testing.TB) int {
	t.Helper()
	all, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(all)
}

// reexec returns a command that runs this test binary in the given role.
func reexec(t *testing.T, role string) *exec.Cmd {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	c := exec.Command(self)
	c.Env = append(os.Environ(), "WEFT_XSK_ROLE="+role)
	c.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	return c
}

func TestMain(m *testing.M) {
	switch os.Getenv("WEFT_XSK_ROLE") {
	case "":
		os.Exit(m.Run())
	case "setup":
		_, err := Setup(Config{Dev: "up0"})
		fmt.Println(err)
	case "engine":
		engine()
	}
}

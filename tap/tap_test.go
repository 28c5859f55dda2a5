// SPDX-License-Identifier: Apache-2.0

package tap

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"weft/internal/iovec"
	"weft/internal/testnet"
	"weft/packet"
	"weft/port"
	"weft/port/porttest"
)

// open opens the queues of a tap from duplicates of its descriptors.
func open(t testing.TB, tap *Tap) port.Device {
	t.Helper()
	text, err := tap.Spec()
	if err != nil {
		t.Fatal(err)
	}
	d, err := Open(text, porttest.Duplicates(t, tap.FDs()))
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func create(t testing.TB, cfg Config) *Tap {
	t.Helper()
	tap, err := Create(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(tap.Close)
	tap.CountFrames()
	return tap
}

// wire is an AF_PACKET socket on the kernel's side of a tap.
type wire struct {
	fd int
	t  testing.TB
}

func openWire(t testing.TB, n *testnet.Namespace, dev string) *wire {
	t.Helper()
	w := &wire{t: t}
	n.Do(func() {
		ifi, err := net.InterfaceByName(dev)
		if err != nil {
			t.Fatal(err)
		}
		// The kernel also sends frames of its own.
		proto := binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, etherType))
		w.fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, int(proto))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { unix.Close(w.fd) })
		if err := unix.Bind(w.fd, &unix.SockaddrLinklayer{Protocol: proto, Ifindex: ifi.Index}); err != nil {
			t.Fatal(err)
		}
	})
	if err := unix.SetsockoptTimeval(w.fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 30}); err != nil {
		t.Fatal(err)
	}
	if err := unix.SetsockoptInt(w.fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 8<<20); err != nil {
		t.Fatal(err)
	}
	return w
}

func (w *wire) send(frame []byte) {
	w.t.Helper()
	if _, err := unix.Write(w.fd, frame); err != nil {
		w.t.Fatal(err)
	}
}

func (w *wire) receive() []byte {
	w.t.Helper()
	buf := make([]byte, 1<<17)
	n, err := unix.Read(w.fd, buf)
	if err != nil {
		w.t.Fatal(err)
	}
	return buf[:n]
}

const etherType = 0x88b5

// frame returns a broadcast frame of n bytes with the test's EtherType.
func frame(n int, seed uint64) []byte {
	r := rand.New(rand.NewPCG(seed, uint64(n)))
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(r.Uint32())
	}
	copy(b, "\xff\xff\xff\xff\xff\xff\x02\x00\x00\x00\x00\x01\x88\xb5")
	return b
}

func recv(t testing.TB, rx port.Rx, b *packet.Batch, want int) [][]byte {
	t.Helper()
	var got [][]byte
	until := time.Now().Add(30 * time.Second)
	for len(got) < want && time.Now().Before(until) {
		b.Reset()
		if rx.Recv(b) < 0 {
			t.Fatal(rx.Fault())
		}
		for i := range b.N {
			f := &b.Frames[i]
			bytes := make([]byte, f.Len())
			if b.Gather(f, bytes); binary.BigEndian.Uint16(bytes[12:]) == etherType {
				got = append(got, bytes)
			}
		}
		rx.Release()
	}
	return got
}

var order = func() (o [packet.BatchSize]uint8) {
	for i := range o {
		o[i] = uint8(i)
	}
	return
}()

func TestFramesOfEverySizePassUnchanged(t *testing.T) {
	n := testnet.New(t)
	tap := create(t, Config{Dev: "tap0", Netns: n.Name, MTU: MaxMTU})
	d := open(t, tap)
	defer d.Close()
	w := openWire(t, n, "tap0")
	b := new(packet.Batch)

	sizes := []int{14, 15, 60, 64, headerLen - 1, headerLen, headerLen + 1, 1514, 9014, MaxMTU + 14}
	for i := range 30 {
		sizes = append(sizes, 14+i*331)
	}
	for _, size := range sizes {
		want := frame(size, 1)
		w.send(want)
		got := recv(t, d.Rx()[0], b, 1)
		if len(got) != 1 || !bytes.Equal(got[0], want) {
			t.Fatalf("frame of %d bytes did not arrive as sent: %d frames", size, len(got))
		}
	}
	// Send delivers frames to the kernel in order. Each frame is a header and spans.
	for first := 0; first < len(sizes); first += packet.BatchSize {
		part := sizes[first:min(first+packet.BatchSize, len(sizes))]
		keep := fill(b, part)
		if got := d.Tx()[0].Send(b, order[:len(part)]); got != len(part) {
			t.Fatalf("Send took %d of %d frames", got, len(part))
		}
		d.Tx()[0].Flush()
		for i, size := range part {
			if got := w.receive(); !bytes.Equal(got, keep[i]) {
				t.Fatalf("frame %d of %d bytes: %d bytes arrived", i, size, len(got))
			}
		}
	}
}

func fill(b *packet.Batch, sizes []int) [][]byte {
	b.Reset()
	var frames [][]byte
	for i, size := range sizes {
		whole := frame(size, uint64(i)+100)
		frames = append(frames, whole)
		mem, err := iovec.Map(size)
		if err != nil {
			panic(err)
		}
		copy(mem, whole)
		f, header := b.Next()
		n := copy(header[:headerLen], whole)
		for at, piece := n, 1; at < size; piece *= 20 {
			l := min(piece, size-at)
			b.AddSpan(f, iovec.Address(mem[at:]), uint32(l))
			at += l
		}
		b.Commit(f, n)
	}
	return frames
}

func TestBatchesLendOnlyUntilRelease(t *testing.T) {
	n := testnet.New(t)
	d := open(t, create(t, Config{Dev: "tap0", Netns: n.Name}))
	defer d.Close()
	w := openWire(t, n, "tap0")
	for i := range 3 * buffers {
		w.send(frame(1000, uint64(i)))
	}
	b, total := new(packet.Batch), 0
	rx := d.Rx()[0]
	// Another thread of the kernel sends some frames.
	for end := time.Now().Add(30 * time.Second); total < 3*buffers && time.Now().Before(end); {
		b.Reset()
		n := rx.Recv(b)
		if n > 0 {
			// A second Recv before Release must not overwrite the buffers of the first.
			first := make([]byte, b.Frames[0].Len())
			b.Gather(&b.Frames[0], first)
			more := new(packet.Batch)
			rx.Recv(more)
			again := make([]byte, b.Frames[0].Len())
			b.Gather(&b.Frames[0], again)
			if !bytes.Equal(first, again) {
				t.Fatal("a lent buffer was read into")
			}
			n += more.N
		}
		rx.Release()
		total += max(n, 0)
	}
	if total < 3*buffers {
		t.Errorf("received %d of %d frames", total, 3*buffers)
	}
}

func TestAFrameThatDoesNotFitIsDroppedByName(t *testing.T) {
	n := testnet.New(t)
	tap := create(t, Config{Dev: "tap0", Netns: n.Name, MTU: 1500})
	d := open(t, tap)
	defer d.Close()
	b := new(packet.Batch)
	fill(b, []int{60, 1500 + overhead, 1501 + overhead, 60})
	if got := d.Tx()[0].Send(b, order[:4]); got != 4 {
		t.Fatalf("Send took %d frames", got)
	}
	for i, want := range []packet.DropReason{0, 0, packet.DropOversizeFrame, 0} {
		if b.Frames[i].Drop != want {
			t.Errorf("frame %d: %v, want %v", i, b.Frames[i].Drop, want)
		}
	}
	// The operator raises the MTU after Create. The kernel then truncates long frames, and Recv sets
	// their Drop.
	n.Exec("ip", "link", "set", "tap0", "mtu", "20000")
	openWire(t, n, "tap0").send(frame(headerLen+bufferLen+1, 1))
	b.Reset()
	seen := false
	for until := time.Now().Add(30 * time.Second); !seen && time.Now().Before(until); {
		b.Reset()
		d.Rx()[0].Release()
		n := d.Rx()[0].Recv(b)
		seen = n > 0 && b.Frames[n-1].Drop == packet.DropOversizeFrame
	}
	if !seen {
		t.Error("a frame longer than a buffer has no drop reason")
	}
}

func TestALinkThatIsDownRefusesByName(t *testing.T) {
	n := testnet.New(t)
	d := open(t, create(t, Config{Dev: "tap0", Netns: n.Name}))
	defer d.Close()
	n.Exec("ip", "link", "set", "tap0", "down")
	b := new(packet.Batch)
	fill(b, []int{60, 60})
	if got := d.Tx()[0].Send(b, order[:2]); got != 2 || b.Frames[0].Drop != packet.DropTxFailed || b.Frames[1].Drop != packet.DropTxFailed {
		t.Errorf("Send took %d frames with drop reasons %v, %v", got, b.Frames[0].Drop, b.Frames[1].Drop)
	}
}

func TestARemovedDeviceIsAFault(t *testing.T) {
	n := testnet.New(t)
	tap := create(t, Config{Dev: "tap0", Netns: n.Name})
	d := open(t, tap)
	defer d.Close()
	n.Exec("ip", "link", "del", "tap0")
	b := new(packet.Batch)
	got := 0
	for range 100 { // the first reads may return older frames
		b.Reset()
		if got = d.Rx()[0].Recv(b); got < 0 {
			break
		}
		d.Rx()[0].Release()
	}
	if got >= 0 || d.Rx()[0].Fault() != "the tap device was removed" {
		t.Errorf("Recv returned %d with fault %q", got, d.Rx()[0].Fault())
	}
	if s := tap.Status(); s.Error != "the tap device was removed" {
		t.Errorf("got status %+v", s)
	}
}

// TestPing forwards between the taps of two namespaces. Their kernels ping each other with the largest
// datagrams.
func TestPing(t *testing.T) {
	a, b := testnet.New(t), testnet.New(t)
	da := open(t, create(t, Config{Dev: "left", Netns: a.Name, MTU: 9000}))
	defer da.Close()
	db := open(t, create(t, Config{Dev: "right", Netns: b.Name, MTU: 9000}))
	defer db.Close()
	a.Exec("ip", "addr", "add", "10.9.0.1/24", "dev", "left")
	b.Exec("ip", "addr", "add", "10.9.0.2/24", "dev", "right")

	stop := make(chan struct{})
	var workers sync.WaitGroup
	forward := func(from, to port.Device) {
		defer workers.Done()
		batch := new(packet.Batch)
		for {
			select {
			case <-stop:
				return
			default:
			}
			// Sleep until the descriptor is readable, as a worker does.
			p := []unix.PollFd{{Fd: int32(from.Rx()[0].WaitFD()), Events: unix.POLLIN}}
			if n, _ := unix.Poll(p, 20); n < 1 {
				continue
			}
			from.Rx()[0].Woken()
			batch.Reset()
			if n := from.Rx()[0].Recv(batch); n > 0 {
				to.Tx()[0].Send(batch, order[:n])
				to.Tx()[0].Flush()
			}
			from.Rx()[0].Release()
		}
	}
	workers.Add(2)
	go forward(da, db)
	go forward(db, da)
	defer workers.Wait()
	defer close(stop)
	for _, size := range []string{"56", "8972", "20000"} {
		a.Exec("ping", "-q", "-c", "5", "-i", "0.05", "-W", "2", "-s", size, "10.9.0.2")
	}
}

func TestConfigurationIsWhatTheKernelShows(t *testing.T) {
	n := testnet.New(t)
	mac, _ := net.ParseMAC("02:00:00:00:aa:01")
	tap := create(t, Config{Dev: "tap0", Netns: "/run/netns/" + n.Name, MAC: mac, MTU: 1400, Queues: 3})
	want := Status{Dev: "tap0", Netns: "/run/netns/" + n.Name, Queues: 3, Created: true, MAC: mac.String(), MTU: 1400, Up: true}
	got := tap.Status()
	want.Index = got.Index
	if got != want {
		t.Errorf("%+v\nwant %+v", got, want)
	}
	// Restore takes over the tap. Then the first Tap is closed.
	blob, fds, err := tap.Snapshot()
	if err != nil {
		t.Fatal(err)
	}
	second, err := Restore(blob, porttest.Duplicates(t, fds))
	if err != nil {
		t.Fatal(err)
	}
	tap.Close()
	if got := second.Status(); got != want {
		t.Errorf("restored: %+v", got)
	}
	d := open(t, second)
	if len(d.Rx()) != 3 || len(d.Tx()) != 3 || d.Tx()[0].MTU() != 1400+overhead || !d.Rx()[0].Polled() || d.State() != nil {
		t.Error("the device is not as configured")
	}
	d.Close()
	second.Close()
	if out, err := n.Command("ip", "link", "show", "tap0").CombinedOutput(); err == nil {
		t.Errorf("the tap outlives its last descriptor: %s", out)
	}
}

func TestPersistentTapIsAttachedAndStays(t *testing.T) {
	n := testnet.New(t)
	n.Exec("ip", "tuntap", "add", "keep", "mode", "tap")
	n.Exec("ip", "link", "set", "keep", "mtu", "2000")
	tap := create(t, Config{Dev: "keep", Netns: n.Name})
	if s := tap.Status(); s.Created || s.MTU != 2000 || tap.MTU() != 2000 || !s.Up {
		t.Errorf("unexpected status %+v", s)
	}
	tap.Close()
	n.Exec("ip", "link", "show", "keep")
	// Create with one queue attaches to a tap that was created for several queues.
	n.Exec("ip", "tuntap", "add", "many", "mode", "tap", "multi_queue")
	create(t, Config{Dev: "many", Netns: n.Name})
}

func TestRefusalsAreNamed(t *testing.T) {
	n := testnet.New(t)
	n.Exec("ip", "link", "add", "br0", "type", "bridge")
	n.Exec("ip", "tuntap", "add", "tun0", "mode", "tun")
	n.Exec("ip", "tuntap", "add", "single", "mode", "tap")
	n.Exec("ip", "tuntap", "add", "jumbo", "mode", "tap")
	n.Exec("ip", "link", "set", "jumbo", "mtu", "30000")
	create(t, Config{Dev: "taken", Netns: n.Name})
	multicast, _ := net.ParseMAC("01:00:5e:00:00:01")
	for _, c := range []struct {
		cfg  Config
		want string
	}{
		{Config{}, "a device name is missing"},
		{Config{Dev: "sixteen-bytes-xx"}, "has 16 bytes, at most 15"},
		{Config{Dev: "a/b"}, "not a device name"},
		{Config{Dev: "tap%d"}, "not a device name"},
		{Config{Dev: "t", MTU: 67}, "MTU 67 is not in 68 to 10000"},
		{Config{Dev: "t", MTU: 10001}, "MTU 10001 is not in 68 to 10000"},
		{Config{Dev: "t", Queues: 65}, "65 queues: expected 1 to 64"},
		{Config{Dev: "t", Queues: -1}, "-1 queues: expected 1 to 64"},
		{Config{Dev: "t", MAC: multicast}, "01:00:5e:00:00:01 is not the MAC address of a device"},
		{Config{Dev: "t", Netns: "no-such"}, `no network namespace "no-such"`},
		{Config{Dev: "t", Netns: "/no/such"}, `no network namespace "/no/such"`},
		{Config{Dev: "t", Netns: "/dev/null"}, "network namespace"},
		{Config{Dev: "br0", Netns: n.Name}, "exists and is a bridge, not a tap"},
		{Config{Dev: "tun0", Netns: n.Name}, "exists and is a tun, not a tap"},
		{Config{Dev: "lo", Netns: n.Name}, "exists and is a device, not a tap"},
		{Config{Dev: "single", Netns: n.Name, Queues: 2}, "exists with one queue"},
		{Config{Dev: "jumbo", Netns: n.Name}, "has MTU 30000, at most 10000"},
		{Config{Dev: "taken", Netns: n.Name}, "in use by another process"},
	} {
		before := descriptors(t)
		tap, err := Create(c.cfg)
		if err == nil {
			tap.Close()
			t.Errorf("Create accepted %+v", c.cfg)
			continue
		}
		if !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%+v: %q, want %q", c.cfg, err, c.want)
		}
		if after := descriptors(t); after > before {
			t.Errorf("%+v: %d descriptors before, %d after", c.cfg, before, after)
		}
	}
	if out, err := n.Command("ip", "link", "show", "t").CombinedOutput(); err == nil {
		t.Errorf("Create made a device of a refused configuration: %s", out)
	}
}

func TestMissingPrivilegeIsNamed(t *testing.T) {
	for _, err := range []error{unix.EPERM, fmt.Errorf("wrapped: %w", unix.EACCES)} {
		if got := explainPermission("create", err).Error(); !strings.Contains(got, "CAP_NET_ADMIN") {
			t.Errorf("%v: the text %q does not name CAP_NET_ADMIN", err, got)
		}
	}
	if got := explainPermission("create", unix.EIO).Error(); strings.Contains(got, "CAP_") {
		t.Errorf("the text %q names a capability for an I/O error", got)
	}
}

func TestABadSpecificationIsRefusedAndOwnsItsDescriptors(t *testing.T) {
	for _, text := range []string{"", "{", `{"queues":2,"mtu":1500}`, `{"queues":1,"mtu":10}`, `{"queues":1,"mtu":70000}`} {
		fd, err := unix.Open("/dev/null", unix.O_RDWR|unix.O_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := Open([]byte(text), []int{fd}); err == nil {
			t.Errorf("Open accepted %q", text)
		}
		if _, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err == nil {
			t.Errorf("%q: the descriptor was not closed", text)
			unix.Close(fd)
		}
	}
}

func TestNothingIsAllocatedAFrame(t *testing.T) {
	n := testnet.New(t)
	d := open(t, create(t, Config{Dev: "tap0", Netns: n.Name}))
	defer d.Close()
	w := openWire(t, n, "tap0")
	rx, tx := d.Rx()[0], d.Tx()[0]
	one := frame(1000, 1)
	b := new(packet.Batch)
	frames := 0
	if got := testing.AllocsPerRun(200, func() {
		for range 4 {
			_, _ = unix.Write(w.fd, one)
		}
		b.Reset()
		if n := rx.Recv(b); n > 0 {
			frames += n
			tx.Send(b, order[:n])
			tx.Flush()
		}
		rx.Release()
	}); got != 0 {
		t.Errorf("%v allocations a pass", got)
	}
	if frames < 400 {
		t.Errorf("only %d frames passed", frames)
	}
}

func TestNoDescriptorIsLeaked(t *testing.T) {
	n := testnet.New(t)
	cycle := func() {
		tap := create(t, Config{Dev: "tap0", Netns: n.Name, Queues: 2})
		d := open(t, tap)
		tap.Status()
		d.Close()
		d.Close() // a second Close does nothing
		tap.Close()
	}
	cycle()
	before := descriptors(t)
	for range 5 {
		cycle()
	}
	if after := descriptors(t); after > before {
		t.Errorf("%d descriptors before, %d after", before, after)
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

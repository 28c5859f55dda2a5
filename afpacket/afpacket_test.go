// SPDX-License-Identifier: Apache-2.0

package afpacket

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"weft/flowtable"
	"weft/internal/testnet"
	"weft/packet"
	"weft/packet/packettest"
	"weft/port"
	"weft/port/porttest"
	"weft/tunnel"
)

// rig has two hosts connected by a veth, each with an uplink.
type rig struct {
	t    *testing.T
	ns   [2]*testnet.Namespace
	up   [2]*Uplink
	dev  [2]port.Device
	mac  [2][6]byte
	addr [2][2]netip.Addr // addresses of each host: IPv4, IPv6
}

func newRig(t *testing.T) *rig { return newRigOf(t, Config{Dev: "u0"}) }

// newRigOf returns a rig whose uplinks have the configuration cfg.
func newRigOf(t *testing.T, cfg Config) *rig {
	t.Helper()
	r := &rig{t: t, ns: [2]*testnet.Namespace{testnet.New(t), testnet.New(t)}}
	testnet.Join(r.ns[0], "u0", r.ns[1], "u0")
	for i, n := range r.ns {
		n.Exec("ip", "link", "set", "u0", "mtu", "1600")
		r.addr[i] = [2]netip.Addr{netip.MustParseAddr(fmt.Sprint("10.9.0.", i+1)), netip.MustParseAddr(fmt.Sprint("fd09::", i+1))}
		n.Exec("ip", "addr", "add", r.addr[i][0].String()+"/24", "dev", "u0")
		n.Exec("ip", "addr", "add", r.addr[i][1].String()+"/64", "dev", "u0", "nodad")
	}
	for i, n := range r.ns {
		n.Do(func() {
			ifi, err := net.InterfaceByName("u0")
			if err != nil {
				t.Fatal(err)
			}
			copy(r.mac[i][:], ifi.HardwareAddr)
			if r.up[i], err = Setup(cfg); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(r.up[i].Close)
			if err := r.up[i].SetEndpoints([]netip.AddrPort{
				netip.AddrPortFrom(r.addr[i][0], 4789), netip.AddrPortFrom(r.addr[i][1], 4789), {},
			}); err != nil {
				t.Fatal(err)
			}
		})
		r.dev[i] = r.open(i)
	}
	return r
}

func (r *rig) open(i int) port.Device {
	r.t.Helper()
	text, err := r.up[i].Spec()
	if err != nil {
		r.t.Fatal(err)
	}
	d, err := Open(text, porttest.Duplicates(r.t, r.up[i].FDs()))
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(d.Close)
	return d
}

func (r *rig) template(v6 bool) tunnel.Template {
	at := 0
	if v6 {
		at = 1
	}
	tmpl, err := tunnel.Build(tunnel.Params{Port: 1, MTU: 4014, SrcMAC: r.mac[0], DstMAC: r.mac[1],
		Local: r.addr[0][at], Remote: r.addr[1][at], UDPPort: 4789})
	if err != nil {
		r.t.Fatal(err)
	}
	return tmpl
}

func (r *rig) receive(i, n int) (frames [][]byte) {
	r.t.Helper()
	rx := r.dev[i].Rx()[0]
	b := new(packet.Batch)
	for end := time.Now().Add(30 * time.Second); len(frames) < n && time.Now().Before(end); {
		b.Reset()
		if rx.Recv(b) < 0 {
			r.t.Fatal(rx.Fault())
		}
		for k := range b.Frames[:b.N] {
			f := &b.Frames[k]
			if f.Offload.GSO != packet.GSONone || f.Drop != packet.DropNone {
				r.t.Fatalf("frame %d has offload %+v and drop %v, want neither", k, f.Offload, f.Drop)
			}
			frames = append(frames, packettest.Bytes(b, f))
		}
		rx.Release()
	}
	return frames
}

var inOrder = func() (order [packet.BatchSize]uint8) {
	for i := range order {
		order[i] = uint8(i)
	}
	return order
}()

func comparable(f []byte) []byte {
	f = bytes.Clone(f)
	if f[12] == 8 {
		clear(f[18:20]) // IPv4 identification
		clear(f[24:26])
		clear(f[40:42])
	} else {
		clear(f[60:62])
	}
	return f
}

// Frames of any length arrive unchanged and in order, whether they are sent one by one
// or several in one call.
func TestTrains(t *testing.T) {
	t.Run("ring", func(t *testing.T) { testTrains(t, newRig(t), 60) })
	t.Run("no ring", func(t *testing.T) {
		r := newRigOf(t, Config{Dev: "u0", Slots: 1})
		if yes, why := r.up[1].Ring(); yes || why == "" {
			t.Fatalf("Ring returned %v, %q for a ring that the kernel refuses", yes, why)
		}
		testTrains(t, r, 20)
	})
}

func testTrains(t *testing.T, r *rig, seeds int64) {
	a := packettest.NewArena(t, 1<<18)
	for seed := range seeds {
		rng := rand.New(rand.NewSource(seed))
		tmpl := r.template(seed%2 == 1)
		b := new(packet.Batch)
		a.Reset()
		var want [][]byte
		size := 60 + rng.Intn(1440)
		n := 1 + rng.Intn(packet.BatchSize)
		hash := uint32(rng.Intn(2)) << 31
		for range n {
			length := size
			switch rng.Intn(20) {
			case 0:
				length = 60 + rng.Intn(1440)
			case 1:
				hash = rng.Uint32()
			}
			data := make([]byte, length)
			rng.Read(data)
			f := a.Add(b, data, 128, rng.Intn(2)*(50+rng.Intn(600)))
			if reason := tmpl.Push(f, 5, hash, uint8(rng.Intn(30)/29), nil); reason != packet.DropNone {
				t.Fatal(reason)
			}
			want = append(want, packettest.Bytes(b, f))
		}
		if got := r.dev[0].Tx()[0].Send(b, inOrder[:n]); got != n {
			t.Fatalf("seed %d: Send took %d of %d frames", seed, got, n)
		}
		got := r.receive(1, n)
		if len(got) != n {
			t.Fatalf("seed %d: %d of %d frames arrived", seed, len(got), n)
		}
		ends := tunnel.NewTerminations()
		ends.Set(0, &tunnel.Termination{Port: 9, VNI: 5, UDPPort: 4789})
		for i := range want {
			if !bytes.Equal(comparable(got[i]), comparable(want[i])) {
				t.Fatalf("seed %d: frame %d of %d differs:\n% x\n% x", seed, i, n, got[i][:80], want[i][:80])
			}
			var words [flowtable.TunnelWords]uint64
			b.Reset()
			a.Reset()
			if reason := ends.Decapsulate(b, a.Add(b, got[i], 192, 0), &words, new(flowtable.TunOptions)); reason != packet.DropNone {
				t.Fatalf("seed %d: frame %d: %v", seed, i, reason)
			}
		}
	}
}

// A full batch of one flow takes one system call to send and one to receive. A smaller batch that
// receives it leaves the rest to the next batch.
func TestTrainIsOneCall(t *testing.T) {
	r := newRig(t)
	a := packettest.NewArena(t, 1<<18)
	tmpl := r.template(false)
	b := new(packet.Batch)
	for range packet.BatchSize {
		f := a.Add(b, make([]byte, 1400), 128, 0)
		tmpl.Push(f, 5, 0, 0, nil)
	}
	if n := r.dev[0].Tx()[0].Send(b, inOrder[:]); n != packet.BatchSize {
		t.Fatalf("Send took %d frames", n)
	}
	rx := r.dev[1].Rx()[0].(*ringQueue)
	got := new(packet.Batch)
	got.N = 10 // as if ten frames came from another queue
	for end := time.Now().Add(30 * time.Second); got.N == 10 && time.Now().Before(end); {
		rx.Recv(got)
	}
	if got.N != packet.BatchSize || rx.lent != 1 || !rx.Arm() {
		t.Fatalf("Recv appended %d frames out of %d buffers", got.N-10, rx.lent)
	}
	rx.Release()
	got.Reset()
	if n := rx.Recv(got); n != 10 || rx.Arm() {
		t.Fatalf("the train left %d frames, want 10", n)
	}
	rx.Release()
	if rx.lent != 0 {
		t.Fatal("a buffer stays lent after Release")
	}
}

// The uplink receives only the datagrams for its endpoints, and the kernel does not answer these.
func TestOnlyEndpoints(t *testing.T) {
	r := newRig(t)
	send := func(port int) {
		r.ns[0].Do(func() {
			c, err := net.Dial("udp", fmt.Sprintf("%v:%d", r.addr[1][0], port))
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			refused := false // a UDP socket reports an ICMP error once, from whichever call comes next
			note := func(err error) { refused = refused || errors.Is(err, unix.ECONNREFUSED) }
			for range 3 {
				_, err := c.Write(make([]byte, 30))
				note(err)
				time.Sleep(5 * time.Millisecond)
			}
			wait := 100 * time.Millisecond
			if port != 4789 && !refused {
				wait = 30 * time.Second
			}
			c.SetReadDeadline(time.Now().Add(wait))
			_, err = c.Read(make([]byte, 1))
			note(err)
			if refused != (port != 4789) {
				t.Errorf("port %d: %v", port, err)
			}
		})
	}
	send(4789)
	send(4790)
	got := r.receive(1, 3)
	for _, f := range got {
		if binary.BigEndian.Uint16(f[36:]) != 4789 {
			t.Fatalf("received a frame for another endpoint: % x", f)
		}
	}
	if len(got) != 3 {
		t.Fatalf("received %d frames", len(got))
	}
	if err := r.up[1].SetEndpoints(nil); err != nil {
		t.Fatal(err)
	}
	r.ns[0].Do(func() {
		c, _ := net.Dial("udp", fmt.Sprintf("%v:4789", r.addr[1][0]))
		c.Write(make([]byte, 30))
		c.Close()
	})
	time.Sleep(20 * time.Millisecond)
	if b := new(packet.Batch); r.dev[1].Rx()[0].Recv(b) != 0 {
		t.Error("the uplink received a datagram for no endpoint")
	}
}

// Two uplinks on two devices have the same endpoints. A datagram for an endpoint may arrive on either
// device.
func TestUplinksShareEndpoints(t *testing.T) {
	r := newRig(t)
	r.ns[0].Exec("ip", "link", "add", "second", "type", "veth", "peer", "name", "other")
	r.ns[0].Exec("ip", "link", "set", "second", "up")
	r.ns[0].Do(func() {
		second, err := Setup(Config{Dev: "second"})
		if err != nil {
			t.Fatal(err)
		}
		defer second.Close()
		if err := second.SetEndpoints(r.up[0].endpoints); err != nil {
			t.Error(err)
		}
	})
}

// SetEndpoints refuses an endpoint to which another socket is bound. The error names
// the endpoint, and the old endpoints stay.
func TestEndpointInUse(t *testing.T) {
	r := newRig(t)
	taken := netip.AddrPortFrom(r.addr[0][0], 4800)
	r.ns[0].Do(func() {
		c, err := net.ListenPacket("udp", taken.String())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		err = r.up[0].SetEndpoints([]netip.AddrPort{taken})
		if err == nil || !strings.Contains(err.Error(), taken.String()) || len(r.up[0].endpoints) != 2 {
			t.Errorf("SetEndpoints returned %v and left %d endpoints", err, len(r.up[0].endpoints))
		}
	})
}

// The next process takes over an uplink from the process that set it up.
func TestSnapshot(t *testing.T) {
	r := newRig(t)
	blob, fds, err := r.up[1].Snapshot()
	if err != nil {
		t.Fatal(err)
	}
	// Earlier versions have no ingress program and refuse its descriptors.
	if want := len(r.up[1].sockets) + len(r.up[1].endpoints); len(fds) != want {
		t.Errorf("%d descriptors, want %d as in earlier versions", len(fds), want)
	}
	again, err := Restore(blob, porttest.Duplicates(t, fds))
	if err != nil {
		t.Fatal(err)
	}
	defer again.Close()
	r.up[1].Close()
	if err := again.SetEndpoints(again.endpoints[:1]); err != nil || len(again.sinks) != 1 {
		t.Fatalf("Restore returned %v with %d sinks", err, len(again.sinks))
	}
	if _, err := Restore([]byte("{}"), []int{}); err == nil {
		t.Error("Restore accepted an empty snapshot")
	}
	if _, err := Open([]byte(`{"queues":2,"mtu":1500}`), nil); err == nil {
		t.Error("Open accepted two queues without descriptors")
	}
}

func TestAllocatesNothing(t *testing.T) {
	r := newRig(t)
	a := packettest.NewArena(t, 1<<18)
	tmpl := r.template(false)
	b, got := new(packet.Batch), new(packet.Batch)
	for range packet.BatchSize {
		f := a.Add(b, make([]byte, 1400), 128, 0)
		tmpl.Push(f, 5, 0, 0, nil)
	}
	tx, rx := r.dev[0].Tx()[0], r.dev[1].Rx()[0]
	if n := testing.AllocsPerRun(20, func() {
		tx.Send(b, inOrder[:])
		tx.Flush()
		got.Reset()
		rx.Recv(got)
		rx.Release()
	}); n != 0 {
		t.Fatalf("a pass makes %v allocations, want 0", n)
	}
}

func TestSetupRefuses(t *testing.T) {
	n := testnet.New(t)
	n.Do(func() {
		if _, err := Setup(Config{Dev: "none0"}); err == nil || !strings.Contains(err.Error(), "none0") {
			t.Error(err)
		}
		if _, err := Setup(Config{Dev: "lo", Queues: MaxQueues + 1}); err == nil {
			t.Error("Setup accepted too many queues")
		}
	})
}

// SPDX-License-Identifier: Apache-2.0

package vhost_test

import (
	"fmt"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"weft/packet"
	"weft/port"
	"weft/vhost"
	"weft/vhost/vhosttest"
)

// TestInflightSession: session and engine die together. A new session finds the position in the front
// end's inflight buffer and continues there.
func TestInflightSession(t *testing.T) { eachLayout(t, inflightSession) }

func inflightSession(t *testing.T, layout uint64) {
	g := guest(t, vhosttest.Options{Features: features | layout, Seed: 100})
	before := 0
	for round := range uint64(4) {
		r := newRig(t, false)
		if round == 0 {
			before = openFiles(t)
		}
		f, err := vhosttest.Dial(r.path)
		if err != nil {
			t.Fatal(err)
		}
		f.KeepInflight = true
		if err := f.Attach(g); err != nil {
			t.Fatal(err)
		}
		r.waitRunning(t, true)
		for i := range 10 * (round + 1) {
			r.echo(t, g, i)
		}
		r.engine.Kill()
		f.Close()
		r.Close()
	}
	if g.Tx[0].Misused+g.Rx[0].Misused != 0 {
		t.Errorf("%d and %d buffers misused", g.Tx[0].Misused, g.Rx[0].Misused)
	}
	eventually(t, "descriptors closed", func() bool { return openFiles(t) <= before })
}

// TestInflightMarks: another back end took some chains and did not complete them. The device gives
// them back to the driver exactly once, and receives all other chains.
func TestInflightMarks(t *testing.T) {
	g := guest(t, vhosttest.Options{Features: features, Inflight: true})
	for i := range 6 {
		g.Tx[0].Send(random(uint64(i), 100))
	}
	g.Tx[0].Publish()
	free := g.Tx[0].Free()
	heads := make([]int, 6)
	for i := range heads {
		heads[i] = g.Tx[0].Slots() - 1 - i
	}
	for i, counter := range []uint64{7, 5, 6} {
		if err := g.MarkInflight(g.Tx[0], heads[i], counter); err != nil {
			t.Fatal(err)
		}
	}
	d := open(t, g, nil)
	if n := g.Tx[0].Reclaim(); n != 3 || g.Tx[0].Free() != free+3 {
		t.Fatalf("%d descriptors came back, %d are free", n, g.Tx[0].Free())
	}
	b := new(packet.Batch)
	if n := d.Rx()[0].Recv(b); n != 3 {
		t.Fatalf("%d frames received, 3 were not taken before", n)
	}
	d.Rx()[0].Release()
	if n := g.Tx[0].Reclaim(); n != 3 || g.Tx[0].Misused != 0 {
		t.Fatalf("%d descriptors came back, %d misused", n, g.Tx[0].Misused)
	}
	d.Close()
	d = open(t, g, nil)
	if n := d.Rx()[0].Recv(b); n != 0 || g.Tx[0].Reclaim() != 0 {
		t.Fatalf("opened again: %d frames", n)
	}
}

// TestInflightRefuses: Open refuses each invalid inflight buffer.
func TestInflightRefuses(t *testing.T) {
	for want, change := range map[string]func(*vhost.InflightSpec){
		"shorter than":  func(s *vhost.InflightSpec) { s.Size *= 2 },
		"at offset 5":   func(s *vhost.InflightSpec) { s.Offset = 5 },
		"of 0 rings":    func(s *vhost.InflightSpec) { s.Queues = 0 },
		"descriptor 99": func(s *vhost.InflightSpec) { s.FD = 99 },
		"too small for": func(s *vhost.InflightSpec) { s.QueueSize = 64 },
	} {
		g := guest(t, vhosttest.Options{Features: features, Inflight: true})
		d, err := g.Open(func(s *vhost.DeviceSpec) { change(&s.Inflight) })
		if err == nil {
			d.Close()
			t.Errorf("%s: opened", want)
		} else if !strings.Contains(err.Error(), want) {
			t.Errorf("%q, expected it to name %q", err, want)
		}
	}
}

// TestBackendChannel: the session does not offer BACKEND_REQ. If a front end sends such a channel, the
// session closes it.
func TestBackendChannel(t *testing.T) {
	r := newRig(t, false)
	g := guest(t, vhosttest.Options{Features: features})
	f := r.attach(t, g)
	if protocol, err := f.U64(vhosttest.GetProtocolFeatures, nil); err != nil || protocol&vhost.ProtocolBackendReq != 0 {
		t.Fatalf("protocol features %#x, %v", protocol, err)
	}
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fds[1])
	answer, err := f.Call(vhosttest.SetBackendReqFD, nil, fds[0])
	unix.Close(fds[0])
	if err != nil || answer[0] != 0 {
		t.Fatalf("SET_BACKEND_REQ_FD: %x, %v", answer, err)
	}
	r.echo(t, g, 1)
	eventually(t, "the channel's end", func() bool {
		n, err := unix.Read(fds[1], make([]byte, 1))
		return n == 0 && err == nil
	})
}

// TestNoMoreChainsThanDescriptors: a driver makes descriptors of a packed ring available again before
// the device has used them. Even then, the device takes no more chains than the ring has descriptors.
func TestNoMoreChainsThanDescriptors(t *testing.T) {
	for _, num := range []int{33, 128, 129} {
		for _, inflight := range []bool{true, false} {
			t.Run(fmt.Sprintf("%d,inflight=%v", num, inflight), func(t *testing.T) {
				o := vhosttest.Options{Features: features | vhost.FeatureRingPacked, Num: num, Inflight: inflight, Seed: 5}
				g := guest(t, o)
				d := open(t, g, nil)
				b, got := new(packet.Batch), 0
				for range 3 * num {
					g.Tx[0].OfferAgain(got)
					b.Reset()
					got += max(d.Rx()[0].Recv(b), 0)
				}
				d.Rx()[0].Release()
				if got != num || d.Rx()[0].Fault() != "" {
					t.Errorf("%d chains received of %d descriptors, fault %q", got, num, d.Rx()[0].Fault())
				}
				o.BufLen = 128
				to, taken := guest(t, o), 0
				z := open(t, to, nil)
				for _, size := range []int{300, 100} { // frames of 300 bytes need several chains, frames of 100 bytes one
					b.Reset()
					lend(t, size).Recv(b)
					for range 3 * num {
						to.Rx[0].OfferAgain(taken)
						taken += z.Tx()[0].Send(b, allOffloads[:1]) * ((size + 12 + 127) / 128)
					}
					if taken > num {
						t.Errorf("%d chains taken of %d descriptors", taken, num)
					}
				}
				z.Tx()[0].Flush()
				if z.Rx()[0].Fault() != "" {
					t.Error(z.Rx()[0].Fault())
				}
			})
		}
	}
}

// lend returns the receive queue of a new device, whose guest has transmitted one frame of the given
// size.
func lend(t *testing.T, size int) port.Rx {
	g := guest(t, vhosttest.Options{})
	g.Tx[0].Send(random(1, size))
	g.Tx[0].Publish()
	return open(t, g, nil).Rx()[0]
}

// TestInflightWorst: every descriptor is marked as in flight, and the used index is one ring length
// behind. Even then, Open reads each mark and each used element only once.
func TestInflightWorst(t *testing.T) {
	const num = vhost.MaxRingSize
	g := guest(t, vhosttest.Options{Features: features, Inflight: true, Num: num, BufLen: 64, Seed: num})
	q := g.Tx[0]
	for id := range num {
		if err := g.MarkInflight(q, id, uint64(num-id)); err != nil {
			t.Fatal(err)
		}
	}
	if err := g.MissInflight(q, num); err != nil {
		t.Fatal(err)
	}
	d := open(t, g, nil)
	d.Close()
	// All used elements are zero and so name descriptor 0. Open returns every other
	// descriptor.
	if n := q.UsedIndex() - g.Seed; n != num-1 {
		t.Fatalf("%d descriptors came back, expected %d", n, num-1)
	}
}

// SPDX-License-Identifier: Apache-2.0

package vhost_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"runtime/debug"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"weft/internal/shm"
	"weft/packet"
	"weft/port"
	"weft/vhost"
	"weft/vhost/vhosttest"
)

func guest(t testing.TB, o vhosttest.Options) *vhosttest.Guest {
	t.Helper()
	g, err := vhosttest.New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(g.Close)
	return g
}

func open(t testing.TB, g *vhosttest.Guest, change func(*vhost.DeviceSpec)) *vhost.Device {
	t.Helper()
	d, err := g.Open(change)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(d.Close)
	return d
}

// random returns n pseudorandom bytes, which depend only on seed and n.
func random(seed uint64, n int) []byte {
	r := rand.New(rand.NewPCG(seed, uint64(n)))
	frame := make([]byte, n)
	for i := range frame {
		frame[i] = byte(r.Uint32())
	}
	return frame
}

var allOffloads = func() []uint8 {
	order := make([]uint8, packet.BatchSize)
	for i := range order {
		order[i] = uint8(i)
	}
	return order
}()

func forward(t testing.TB, b *packet.Batch, from, to *vhost.Device) int {
	t.Helper()
	b.Reset()
	n := from.Rx()[0].Recv(b)
	if n < 0 {
		t.Fatalf("receive: %s", from.Rx()[0].Fault())
	}
	if n != b.N {
		t.Fatalf("Recv says %d frames, the batch has %d", n, b.N)
	}
	if sent := to.Tx()[0].Send(b, allOffloads[:n]); sent != n {
		t.Fatalf("sent %d of %d frames", sent, n)
	}
	to.Tx()[0].Flush()
	from.Rx()[0].Release()
	return n
}

var featureSets = map[string]uint64{
	"legacy":        0,
	"version1":      vhost.FeatureVersion1,
	"mergeable":     vhost.FeatureVersion1 | vhost.FeatureMergeable,
	"legacy-merge":  vhost.FeatureMergeable,
	"event":         vhost.FeatureVersion1 | vhost.FeatureMergeable | vhost.FeatureEventIndex,
	"indirect":      vhost.FeatureVersion1 | vhost.FeatureMergeable | vhost.FeatureIndirect,
	"plain-event":   vhost.FeatureEventIndex,
	"everything":    vhost.FeatureVersion1 | vhost.FeatureMergeable | vhost.FeatureEventIndex | vhost.FeatureIndirect | vhost.FeatureAnyLayout,
	"indirect-flat": vhost.FeatureIndirect,
	"packed":        vhost.FeatureVersion1 | vhost.FeatureRingPacked,
	"packed-merge":  vhost.FeatureVersion1 | vhost.FeatureRingPacked | vhost.FeatureMergeable | vhost.FeatureEventIndex | vhost.FeatureInOrder,
	"packed-tables": vhost.FeatureVersion1 | vhost.FeatureRingPacked | vhost.FeatureMergeable | vhost.FeatureIndirect,
}

// TestForward forwards frames of all sizes and compares every byte. It uses every feature set and
// every division of frames into descriptor chains. It continues until all ring indexes have wrapped
// around.
func TestForward(t *testing.T) {
	for name, features := range featureSets {
		for _, layout := range vhosttest.Layouts {
			for _, split := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s/%v/split=%v", name, layout, split), func(t *testing.T) {
					o := vhosttest.Options{Num: 64, Features: features, Layout: layout, SplitRegions: split, Seed: 65500,
						Indirect: features&vhost.FeatureIndirect != 0}
					from, to := guest(t, o), guest(t, o)
					checkForward(t, from, to, 300, 1514)
				})
			}
		}
	}
}

// TestForwardMerged: with mergeable receive buffers, a frame larger than a buffer
// fills several buffers.
func TestForwardMerged(t *testing.T) {
	for _, layout := range vhosttest.Layouts {
		for _, packed := range []uint64{0, vhost.FeatureRingPacked} {
			features := vhost.FeatureVersion1 | vhost.FeatureMergeable | vhost.FeatureIndirect | packed
			from := guest(t, vhosttest.Options{Num: 64, Features: features, BufLen: 65600 + 12, Layout: layout})
			to := guest(t, vhosttest.Options{Num: 256, Features: features, BufLen: 1000, Layout: layout, Indirect: true, SplitRegions: true})
			checkForward(t, from, to, 100, 65535+22)
		}
	}
}

var layouts = map[string]uint64{"split": 0, "packed": vhost.FeatureRingPacked}

func eachLayout(t *testing.T, run func(t *testing.T, features uint64)) {
	for name, features := range layouts {
		t.Run(name, func(t *testing.T) { run(t, features) })
	}
}

func checkForward(t *testing.T, from, to *vhosttest.Guest, frames, longest int) {
	t.Helper()
	a, z := open(t, from, nil), open(t, to, nil)
	b := new(packet.Batch)
	sizes := rand.New(rand.NewPCG(1, 2))
	for i := range frames {
		sent := random(uint64(i), 14+sizes.IntN(longest-13))
		if !from.Tx[0].Send(sent) {
			t.Fatalf("frame %d: no buffer", i)
		}
		from.Tx[0].Publish()
		if n := forward(t, b, a, z); n != 1 {
			t.Fatalf("frame %d: %d received", i, n)
		}
		got, header, ok := to.Rx[0].Recv(nil)
		if !ok || !bytes.Equal(got, sent) {
			t.Fatalf("frame %d of %d bytes: received %v, %d bytes, header %x", i, len(sent), ok, len(got), header)
		}
		if !bytes.Equal(header[:10], make([]byte, 10)) {
			t.Fatalf("frame %d: virtio-net header %x", i, header)
		}
		if merged := to.Features&vhost.FeatureMergeable != 0; to.Features&vhost.FeatureVersion1 != 0 && !merged && header[10] != 1 {
			t.Fatalf("frame %d: num_buffers %d without mergeable buffers", i, header[10])
		}
		if _, _, more := to.Rx[0].Recv(nil); more {
			t.Fatalf("frame %d: received twice", i)
		}
		to.Rx[0].Refill()
	}
}

// TestBatch: full batches and full rings lose no frame and keep the order.
func TestBatch(t *testing.T) { eachLayout(t, batches) }

func batches(t *testing.T, layout uint64) {
	o := vhosttest.Options{Num: 128, Features: vhost.FeatureVersion1 | vhost.FeatureMergeable | layout}
	from, to := guest(t, o), guest(t, o)
	a, z := open(t, from, nil), open(t, to, nil)
	b := new(packet.Batch)
	sent, received := 0, 0
	for round := range 40 {
		for range 1 + round*7%100 {
			if !from.Tx[0].Send(random(uint64(sent), 60+sent%1400)) {
				break
			}
			sent++
		}
		from.Tx[0].Publish()
		for forward(t, b, a, z) > 0 {
		}
		for {
			got, _, ok := to.Rx[0].Recv(nil)
			if !ok {
				break
			}
			if !bytes.Equal(got, random(uint64(received), 60+received%1400)) {
				t.Fatalf("frame %d differs", received)
			}
			received++
		}
		to.Rx[0].Refill()
	}
	if received != sent {
		t.Fatalf("%d frames received of %d", received, sent)
	}
}

// TestNothingBeforePublish: the guest sees used buffers only after the device has called Release or
// Flush.
func TestNothingBeforePublish(t *testing.T) { eachLayout(t, nothingBeforePublish) }

func nothingBeforePublish(t *testing.T, layout uint64) {
	o := vhosttest.Options{Features: vhost.FeatureVersion1 | layout}
	from, to := guest(t, o), guest(t, o)
	a, z := open(t, from, nil), open(t, to, nil)
	b := new(packet.Batch)
	for i := range 5 {
		from.Tx[0].Send(random(uint64(i), 300))
	}
	if n := a.Rx()[0].Recv(b); n != 0 {
		t.Fatalf("received %d frames that were not published", n)
	}
	from.Tx[0].Publish()
	a.Rx()[0].Recv(b)
	z.Tx()[0].Send(b, allOffloads[:5])
	if from.Tx[0].UsedIndex() != 0 || to.Rx[0].UsedIndex() != 0 {
		t.Fatalf("used indexes %d and %d before the pass ended", from.Tx[0].UsedIndex(), to.Rx[0].UsedIndex())
	}
	start := from.Tx[0].Start()
	checkState(t, a, 1, start)
	checkState(t, z, 0, start)
	z.Tx()[0].Flush()
	a.Rx()[0].Release()
	if from.Tx[0].UsedIndex() != 5 || to.Rx[0].UsedIndex() != 5 {
		t.Fatalf("used indexes %d and %d after it", from.Tx[0].UsedIndex(), to.Rx[0].UsedIndex())
	}
	checkState(t, a, 1, start+5)
	checkState(t, z, 0, start+5)
}

func checkState(t *testing.T, d *vhost.Device, vring int, lastAvail uint16) {
	t.Helper()
	var s vhost.DeviceState
	if err := json.Unmarshal(d.State(), &s); err != nil {
		t.Fatal(err)
	}
	for _, v := range s.Vrings {
		if v.Index == vring {
			if v.LastAvail != lastAvail {
				t.Fatalf("vring %d stopped at %d, expected %d", vring, v.LastAvail, lastAvail)
			}
			return
		}
	}
	t.Fatalf("no vring %d in %+v", vring, s)
}

// TestResume: a device dies in the middle of a worker's pass. The next device continues, and every
// frame arrives exactly once.
func TestResume(t *testing.T) {
	eachLayout(t, func(t *testing.T, layout uint64) {
		resumes(t, layout, byEngine)
		resumes(t, layout, byControl)
	})
}

// byEngine makes the next device of a guest continue at the positions that the last device recorded.
func byEngine(testing.TB, *vhosttest.Guest) func(*vhost.DeviceSpec) {
	return func(s *vhost.DeviceSpec) { s.Resume = true }
}

// byControl makes the next device begin at the positions that control reads from the rings. Control
// does this if the front end stops the rings while no engine runs.
func byControl(t testing.TB, g *vhosttest.Guest) func(*vhost.DeviceSpec) {
	s, fds, err := g.Spec()
	if err != nil {
		t.Fatal(err)
	}
	positions := map[int]uint16{}
	for _, v := range s.Vrings {
		if positions[v.Index], err = vhost.ResumePosition(s, fds, v); err != nil {
			t.Error(err)
		}
	}
	for _, fd := range fds {
		unix.Close(fd)
	}
	return func(s *vhost.DeviceSpec) {
		for i := range s.Vrings {
			s.Vrings[i].LastAvail = positions[s.Vrings[i].Index]
		}
	}
}

func resumes(t *testing.T, layout uint64, resume func(testing.TB, *vhosttest.Guest) func(*vhost.DeviceSpec)) {
	o := vhosttest.Options{Num: 32, Features: vhost.FeatureVersion1 | vhost.FeatureMergeable | layout, Seed: 65530}
	from, to := guest(t, o), guest(t, o)
	a, z := open(t, from, nil), open(t, to, nil)
	b := new(packet.Batch)
	for i := range 100 {
		if !from.Tx[0].Send(random(uint64(i), 200)) {
			t.Fatal("no buffer")
		}
		from.Tx[0].Publish()
		if i%3 == 0 { // in every third round, the device dies before it publishes
			b.Reset()
			z.Tx()[0].Send(b, allOffloads[:a.Rx()[0].Recv(b)])
			a.Close()
			z.Close()
			a, z = open(t, from, resume(t, from)), open(t, to, resume(t, to))
		}
		forward(t, b, a, z)
		got, _, ok := to.Rx[0].Recv(nil)
		if !ok || !bytes.Equal(got, random(uint64(i), 200)) {
			t.Fatalf("frame %d: %v, %d bytes", i, ok, len(got))
		}
		to.Rx[0].Refill()
	}
}

// TestResumeTouchesNothing: the memory file has a hole where the rings are. Control must read the
// rings without a page fault, because a fault waits while the front end punches a hole. A fault would
// show, because it gives the file pages.
func TestResumeTouchesNothing(t *testing.T) {
	eachLayout(t, func(t *testing.T, layout uint64) {
		g := guest(t, vhosttest.Options{Num: 32, Features: vhost.FeatureVersion1 | layout})
		open(t, g, nil).Close()
		var st unix.Stat_t
		if err := unix.Fstat(g.FD(), &st); err != nil {
			t.Fatal(err)
		}
		if err := unix.Fallocate(g.FD(), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 0, st.Size); err != nil {
			t.Fatal(err)
		}
		byControl(t, g)
		if err := unix.Fstat(g.FD(), &st); err != nil || st.Blocks != 0 {
			t.Errorf("the file has %d blocks, want none: %v", st.Blocks, err)
		}
	})
}

// TestResumeTorn kills a device at every step of publishing. The next device neither loses nor repeats
// a frame.
func TestResumeTorn(t *testing.T) {
	t.Run("record", func(t *testing.T) { resumesTorn(t, false, byEngine) })
	t.Run("inflight", func(t *testing.T) { resumesTorn(t, true, byEngine) })
	t.Run("control", func(t *testing.T) { resumesTorn(t, false, byControl) })
}

func resumesTorn(t *testing.T, inflight bool, resume func(testing.TB, *vhosttest.Guest) func(*vhost.DeviceSpec)) {
	for _, layout := range vhosttest.Layouts {
		t.Run(layout.String(), func(t *testing.T) {
			o := vhosttest.Options{Num: 64, Features: vhost.FeatureVersion1 | vhost.FeatureMergeable | vhost.FeatureRingPacked,
				Seed: 29, Layout: layout, Inflight: inflight}
			from := guest(t, o)
			o.BufLen = 500 // so that each frame needs two buffers
			to := guest(t, o)
			a, z := open(t, from, nil), open(t, to, nil)
			b, sent, received := new(packet.Batch), 0, 0
			receive := func() {
				for {
					got, _, ok := to.Rx[0].Recv(nil)
					if !ok {
						break
					}
					switch {
					case bytes.Equal(got, random(uint64(received), 700)):
						received++
					case received == 0 || !bytes.Equal(got, random(uint64(received-1), 700)) && !bytes.Equal(got, random(uint64(received-2), 700)):
						t.Fatalf("frame of %d bytes is neither number %d nor one of the two before", len(got), received)
					}
				}
				to.Rx[0].Refill()
			}
			for round := range 400 {
				for range 1 + round%2 {
					if from.Tx[0].Send(random(uint64(sent), 700)) {
						sent++
					}
				}
				from.Tx[0].Publish()
				b.Reset()
				z.Tx()[0].Send(b, allOffloads[:max(a.Rx()[0].Recv(b), 0)])
				n := z.TearPublish(0, round%5)
				if round%3 == 0 { // in every third round, the guest receives before the next device opens
					receive()
				}
				if n <= round%5 && round%2 == 0 {
					a.TearPublish(1, round%7)
					from.Tx[0].Reclaim()
				}
				a.Close()
				z.Close()
				a, z = open(t, from, resume(t, from)), open(t, to, resume(t, to))
				for forward(t, b, a, z) > 0 {
				}
				receive()
			}
			if received != sent || from.Tx[0].Misused+to.Rx[0].Misused != 0 {
				t.Fatalf("%d frames received of %d, %d and %d buffers misused", received, sent, from.Tx[0].Misused, to.Rx[0].Misused)
			}
			from.Tx[0].Reclaim()
			if free := from.Tx[0].Free(); free != from.Tx[0].Slots() {
				t.Fatalf("%d of %d buffers came back", free, from.Tx[0].Slots())
			}
		})
	}
}

// TestRoom: Send leaves a frame to the caller if the guest has too few buffers for it. Send drops a
// frame that does not fit into any number of buffers.
func TestRoom(t *testing.T) {
	from := guest(t, vhosttest.Options{Num: 64, Features: vhost.FeatureVersion1})
	small := guest(t, vhosttest.Options{Num: 4, Features: vhost.FeatureVersion1, BufLen: 512})
	merge := guest(t, vhosttest.Options{Num: 4, Features: vhost.FeatureMergeable, BufLen: 512})
	a, s, m := open(t, from, nil), open(t, small, nil), open(t, merge, nil)
	b := new(packet.Batch)
	for i, size := range []int{400, 600, 100, 1500, 100, 100, 100} {
		from.Tx[0].Send(random(uint64(i), size))
	}
	from.Tx[0].Publish()
	a.Rx()[0].Recv(b)
	if n := s.Tx()[0].Send(b, allOffloads[:7]); n != 6 {
		t.Fatalf("4 buffers and 2 frames too long: %d taken", n)
	}
	for i := range 7 {
		want := packet.DropNone
		if i == 1 || i == 3 {
			want = packet.DropOversizeFrame
		}
		if b.Frames[i].Drop != want {
			t.Fatalf("frame %d: %v, expected %v", i, b.Frames[i].Drop, want)
		}
		b.Frames[i].Drop = packet.DropNone
	}
	// The first three frames need 1, 2 and 1 of the guest's 4 buffers.
	if n := m.Tx()[0].Send(b, allOffloads[:7]); n != 3 {
		t.Fatalf("mergeable: %d taken", n)
	}
	if n := m.Tx()[0].Send(b, []uint8{3}); n != 0 {
		t.Fatalf("frame taken, expected too few free buffers for it")
	}
	m.Tx()[0].Flush()
	a.Rx()[0].Release()
	for _, i := range []int{0, 1, 2} {
		size := []int{400, 600, 100}[i]
		if got, h, ok := merge.Rx[0].Recv(nil); !ok || !bytes.Equal(got, random(uint64(i), size)) {
			t.Fatalf("frame %d: %v, %d bytes, header %x", i, ok, len(got), h)
		}
	}
	if n := m.Tx()[0].Send(b, []uint8{4}); n != 0 {
		t.Fatal("frame taken though no buffer was offered")
	}
	merge.Rx[0].Refill()
	if n := m.Tx()[0].Send(b, []uint8{3}); n != 1 {
		t.Fatal("frame not taken though buffers were offered")
	}
}

// TestMTU: a frame with a VLAN tag that exceeds the guest's MTU is dropped.
func TestMTU(t *testing.T) {
	from, to := guest(t, vhosttest.Options{BufLen: 4096}), guest(t, vhosttest.Options{BufLen: 4096})
	a := open(t, from, nil)
	z := open(t, to, func(s *vhost.DeviceSpec) { s.MTU = 1500 })
	if z.Tx()[0].MTU() != 1518 {
		t.Fatalf("MTU of %d", z.Tx()[0].MTU())
	}
	from.Tx[0].Send(random(1, 1518))
	from.Tx[0].Send(random(2, 1519))
	from.Tx[0].Publish()
	b := new(packet.Batch)
	a.Rx()[0].Recv(b)
	if n := z.Tx()[0].Send(b, allOffloads[:2]); n != 2 || b.Frames[0].Drop != 0 || b.Frames[1].Drop != packet.DropOversizeFrame {
		t.Fatalf("%d taken, %v, %v", n, b.Frames[0].Drop, b.Frames[1].Drop)
	}
}

// TestNotify: the device sends calls, and the guest sends kicks, only when the other side has
// requested them by flags or by the event index.
func TestNotify(t *testing.T) {
	for _, features := range []uint64{vhost.FeatureVersion1, vhost.FeatureVersion1 | vhost.FeatureEventIndex,
		vhost.FeatureVersion1 | vhost.FeatureRingPacked, vhost.FeatureVersion1 | vhost.FeatureRingPacked | vhost.FeatureEventIndex} {
		t.Run(fmt.Sprintf("%#x", features), func(t *testing.T) {
			o := vhosttest.Options{Features: features, Interrupts: true}
			from, to := guest(t, o), guest(t, o)
			a, z := open(t, from, nil), open(t, to, nil)
			b := new(packet.Batch)
			send := func() {
				from.Tx[0].Send(random(1, 100))
				from.Tx[0].Publish()
			}
			pass := func() { send(); forward(t, b, a, z) }
			pass() // the first publish always calls
			to.Rx[0].WaitCall(0)
			to.Rx[0].Recv(nil)
			to.Rx[0].WantCalls(true)
			pass()
			if !to.Rx[0].WaitCall(0) {
				t.Fatal("no call though the driver wants one")
			}
			to.Rx[0].Recv(nil)
			to.Rx[0].WantCalls(false)
			pass()
			if to.Rx[0].WaitCall(0) {
				t.Fatal("a call though the driver wants none")
			}
			before := from.Tx[0].Kicks
			pass()
			if from.Tx[0].Kicks != before {
				t.Fatal("a kick though the device is awake")
			}
			if a.Rx()[0].Arm() {
				t.Fatal("Arm of an empty ring reports waiting frames")
			}
			send()
			if from.Tx[0].Kicks != before+1 {
				t.Fatal("no kick though the device is armed")
			}
			if !a.Rx()[0].Arm() {
				t.Fatal("Arm of a ring with a frame reports no waiting frame")
			}
			a.Rx()[0].Disarm()
			forward(t, b, a, z)
		})
	}
}

// TestNotifyOnEmpty: a legacy driver has disabled calls. With VIRTIO_F_NOTIFY_ON_EMPTY, it still gets
// a call when the device uses its last chain.
func TestNotifyOnEmpty(t *testing.T) {
	for _, on := range []bool{true, false} {
		o := vhosttest.Options{Interrupts: true}
		if on {
			o.Features = vhost.FeatureNotifyOnEmpty
		}
		from, to := guest(t, o), guest(t, vhosttest.Options{})
		a, z := open(t, from, nil), open(t, to, nil)
		b, q := new(packet.Batch), from.Tx[0]
		q.WantCalls(false)
		send := func(n int) {
			for range n {
				if !q.Send(random(1, 64)) {
					t.Fatal("no buffer")
				}
			}
			q.Publish()
		}
		send(1)
		forward(t, b, a, z) // the first publish of a new device always sends a call
		q.WaitCall(0)
		send(packet.BatchSize + 8)
		forward(t, b, a, z)
		if q.WaitCall(0) {
			t.Errorf("notify_on_empty %v: called with frames left", on)
		}
		forward(t, b, a, z)
		if called := q.WaitCall(0); called != on {
			t.Errorf("notify_on_empty %v: called %v with nothing left", on, called)
		}
	}
}

// TestAttacks: each attack breaks the device with a fault that names the ring. The other guest
// receives nothing of it.
func TestAttacks(t *testing.T) { eachLayout(t, attacks) }

func attacks(t *testing.T, layout uint64) {
	features := vhost.FeatureVersion1 | vhost.FeatureMergeable | vhost.FeatureIndirect | layout
	for _, transmit := range []bool{true, false} {
		attacks := vhosttest.Attacks
		if transmit {
			attacks = append(append([]vhosttest.Attack{}, attacks...), vhosttest.TransmitAttacks...)
		}
		for _, attack := range attacks {
			if attack.Split && layout != 0 {
				continue
			}
			t.Run(fmt.Sprintf("%s/transmit=%v", attack.Name, transmit), func(t *testing.T) {
				bad, good := guest(t, vhosttest.Options{Features: features, Num: 64}), guest(t, vhosttest.Options{Features: features})
				a, z := open(t, bad, nil), open(t, good, nil)
				b := new(packet.Batch)
				if transmit {
					bad.Tx[0].Send(random(1, 100)) // a valid frame before the attack
					bad.Tx[0].Publish()
					forward(t, b, a, z)
					attack.Do(bad.Tx[0])
				} else {
					attack.Do(bad.Rx[0])
					good.Tx[0].Send(random(1, 100))
					good.Tx[0].Publish()
					z.Rx()[0].Recv(b)
					if n := a.Tx()[0].Send(b, allOffloads[:b.N]); n != 0 {
						t.Fatalf("sent %d frames into a bad ring", n)
					}
					a.Tx()[0].Flush()
					z.Rx()[0].Release()
					b.Reset()
				}
				checkBroken(t, a, b, transmit)
			})
		}
	}
}

func checkBroken(t *testing.T, d *vhost.Device, b *packet.Batch, transmit bool) {
	t.Helper()
	b.Reset()
	if n := d.Rx()[0].Recv(b); n >= 0 {
		t.Fatalf("received %d frames from a broken device", n)
	}
	ring := "vring 0"
	if transmit {
		ring = "vring 1"
	}
	text := d.Rx()[0].Fault()
	if !strings.HasPrefix(text, ring) || strings.Contains(text, "%!") {
		t.Fatalf("fault %q, expected one of %s", text, ring)
	}
	if !d.Rx()[0].Arm() {
		t.Fatal("a broken device lets its worker sleep")
	}
}

// TestDisabled: the device discards the frames of a disabled transmit ring. For a disabled receive
// ring, it has no Tx.
func TestDisabled(t *testing.T) {
	g := guest(t, vhosttest.Options{Pairs: 2})
	d := open(t, g, func(s *vhost.DeviceSpec) { s.Vrings[2].Enabled, s.Vrings[3].Enabled = false, false })
	if len(d.Tx()) != 1 || len(d.Rx()) != 2 {
		t.Fatalf("%d transmit queues, %d receive queues", len(d.Tx()), len(d.Rx()))
	}
	g.Tx[1].Send(random(1, 100))
	g.Tx[1].Publish()
	b := new(packet.Batch)
	if n := d.Rx()[1].Recv(b); n != 0 || b.N != 0 {
		t.Fatalf("%d frames from a disabled ring", n)
	}
	if g.Tx[1].UsedIndex() != 1 {
		t.Fatal("the disabled ring's frame was not given back")
	}
}

// TestOpenRefuses: Open refuses each invalid device specification with an error that
// names the invalid part.
func TestOpenRefuses(t *testing.T) {
	tests := map[string]func(*vhost.DeviceSpec){
		"shorter than":      func(s *vhost.DeviceSpec) { s.Regions[0].Size += 4096 },
		"wraps around":      func(s *vhost.DeviceSpec) { s.Regions[0].GuestAddr = ^uint64(0) - 4096 },
		"overlaps":          func(s *vhost.DeviceSpec) { s.Regions = append(s.Regions, s.Regions[0]) },
		"0 regions":         func(s *vhost.DeviceSpec) { s.Regions = nil },
		"descriptor 99":     func(s *vhost.DeviceSpec) { s.Regions[0].FD = 99 },
		"100 descriptors":   func(s *vhost.DeviceSpec) { s.Vrings[0].Num = 100 },
		"65536 descriptors": func(s *vhost.DeviceSpec) { s.Vrings[0].Num = 65536 },
		"not aligned":       func(s *vhost.DeviceSpec) { s.Vrings[0].Used++ },
		"not in one memory": func(s *vhost.DeviceSpec) { s.Vrings[1].Avail = 4096 },
		"descriptors: user": func(s *vhost.DeviceSpec) { s.Vrings[1].Desc += s.Regions[0].Size - 64*4096 + 1<<30 },
		"expected an index": func(s *vhost.DeviceSpec) { s.Vrings[0].Index = 999 },
		"leaves it unaligned": func(s *vhost.DeviceSpec) {
			s.Regions[0].MmapOffset, s.Regions[0].Size = 1, s.Regions[0].Size-4096
		},
		"position 300 of 256": func(s *vhost.DeviceSpec) {
			s.Features, s.Vrings[1].LastAvail = vhost.FeatureVersion1|vhost.FeatureRingPacked, 300
		},
		"record: descriptor 70":   func(s *vhost.DeviceSpec) { s.Record = 71 },
		"dirty log: descriptor 9": func(s *vhost.DeviceSpec) { s.Log = vhost.LogSpec{Size: 4096, FD: 9} },
		"dirty log of 4 bytes":    func(s *vhost.DeviceSpec) { s.Log = vhost.LogSpec{Size: 4} },
		"vring 0: descriptor 50":  func(s *vhost.DeviceSpec) { s.Vrings[0].Kick = 50 },
	}
	for want, change := range tests {
		g := guest(t, vhosttest.Options{})
		d, err := g.Open(change)
		if err == nil {
			d.Close()
			t.Fatalf("%s: opened", want)
		}
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q, expected it to name %q", err, want)
		}
	}
}

// TestTruncated: the worker survives a read of guest memory whose file was truncated. The next Open
// refuses the file.
func TestTruncated(t *testing.T) {
	bad, good := guest(t, vhosttest.Options{}), guest(t, vhosttest.Options{})
	a := open(t, bad, nil)
	z := open(t, good, nil)
	if err := bad.Truncate(4096); err != nil {
		t.Fatal(err)
	}
	faulted := func() (faulted bool) {
		defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
		defer func() { faulted = recover() != nil }()
		a.Rx()[0].Recv(new(packet.Batch))
		return false
	}()
	if !faulted {
		t.Fatal("no fault")
	}
	_ = a.State() // reads no guest memory
	a.Close()
	good.Tx[0].Send(random(1, 64))
	good.Tx[0].Publish()
	if n := z.Rx()[0].Recv(new(packet.Batch)); n != 1 {
		t.Fatalf("the other device received %d", n)
	}
	if _, err := bad.Open(nil); err == nil || !strings.Contains(err.Error(), "shorter") {
		t.Fatalf("opened over a truncated file: %v", err)
	}
}

// TestTaken: after a Send that a fault has interrupted, Taken does not count the frames of earlier
// Sends.
func TestTaken(t *testing.T) {
	bad, good := guest(t, vhosttest.Options{}), guest(t, vhosttest.Options{})
	a, z := open(t, bad, nil), open(t, good, nil)
	for i := range 3 {
		bad.Tx[0].Send(random(uint64(i), 1000))
	}
	bad.Tx[0].Publish()
	b := new(packet.Batch)
	if n := a.Rx()[0].Recv(b); n != 3 {
		t.Fatalf("received %d frames", n)
	}
	tx := z.Tx()[0].(port.TakingTx)
	if n := tx.Send(b, allOffloads[:3]); n != 3 || tx.Taken() != 3 {
		t.Fatalf("sent %d, taken %d, want 3", n, tx.Taken())
	}
	if err := bad.Truncate(4096); err != nil {
		t.Fatal(err)
	}
	faulted := func() (faulted bool) {
		defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
		defer func() { faulted = recover() != nil }()
		tx.Send(b, allOffloads[:3])
		return false
	}()
	if !faulted || tx.Taken() != 0 {
		t.Errorf("faulted %v, taken %d, want 0", faulted, tx.Taken())
	}
}

// TestWake: a fault of a receive ring wakes the worker of the same guest's transmit ring, and this
// worker reports the fault.
func TestWake(t *testing.T) {
	features := uint64(vhost.FeatureVersion1)
	bad, good := guest(t, vhosttest.Options{Features: features}), guest(t, vhosttest.Options{Features: features})
	a, z := open(t, bad, nil), open(t, good, nil)
	wake, err := shm.NewEvent()
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(wake)
	a.Rx()[0].(port.Placed).Place(0, wake)
	if a.Rx()[0].Arm() {
		t.Fatal("armed, and told that frames wait")
	}
	bad.Rx[0].Descs[0].Addr = 0
	good.Tx[0].Send(random(1, 64))
	good.Tx[0].Publish()
	b := new(packet.Batch)
	z.Rx()[0].Recv(b)
	a.Tx()[0].Send(b, allOffloads[:1])
	if !readable(wake, 30*time.Second) {
		t.Fatal("the worker was not woken")
	}
	checkBroken(t, a, b, false)
}

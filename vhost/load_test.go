// SPDX-License-Identifier: Apache-2.0

package vhost_test

import (
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"weft/internal/cpu"
	"weft/packet"
	"weft/vhost"
	"weft/vhost/vhosttest"
)

func cross(b *packet.Batch, d []*vhost.Device) int {
	total := 0
	for i := range d {
		b.Reset()
		n := d[i].Rx()[0].Recv(b)
		if n > 0 {
			d[i^1].Tx()[0].Send(b, allOffloads[:n])
			total += n
		}
	}
	for i := range d {
		d[i].Tx()[0].Flush()
		d[i].Rx()[0].Release()
	}
	return total
}

// TestLoad runs the load generator against a worker. The guests check every byte and
// the order of the frames.
func TestLoad(t *testing.T) {
	for _, c := range []vhosttest.LoadConfig{
		{Flows: 1000, Check: true, Core: -1},
		{Flows: 1000, Check: true, Core: -1, MostAStep: 3},
		{FrameSize: 1500, Check: true, Core: -1, Pairs: 2, Num: 256, InFlight: 64},
		{Flows: 1000, Check: true, Core: -1, Features: vhost.FeatureVersion1 | vhost.FeatureMergeable | vhost.FeatureRingPacked},
	} {
		l, err := vhosttest.NewLoad(c)
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		var devices []*vhost.Device
		for _, g := range l.Guests {
			devices = append(devices, open(t, g, nil))
		}
		var end atomic.Bool
		done := make(chan int)
		go func() {
			b, total := new(packet.Batch), 0
			for !end.Load() {
				n := 0
				for i := 0; i < len(devices); i += 2 {
					n += cross(b, devices[i:i+2])
				}
				if total += n; n == 0 {
					runtime.Gosched()
				}
			}
			done <- total
		}()
		r, err := l.Run(200*time.Millisecond, nil)
		end.Store(true)
		if err != nil {
			t.Fatal(err)
		}
		if total := <-done; r.Frames == 0 || r.Bad != 0 || r.Misused != 0 || r.Frames > uint64(total) {
			t.Errorf("%+v: %d frames received, %d bad, %d forwarded", c, r.Frames, r.Bad, total)
		}
		for i, n := range r.PerGuest {
			if n == 0 {
				t.Errorf("guest %d received nothing", i)
			}
		}
	}
}

// TestLoadRests: Load.Rest returns the exact number of lost frames. After each Rest, the other frames
// circulate again.
func TestLoadRests(t *testing.T) {
	for _, features := range []uint64{0, vhost.FeatureRingPacked} {
		l, err := vhosttest.NewLoad(vhosttest.LoadConfig{Check: true, Repeats: true, Core: -1, Features: vhost.FeatureVersion1 | vhost.FeatureMergeable | features})
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		devices := []*vhost.Device{open(t, l.Guests[0], nil), open(t, l.Guests[1], nil)}
		b, lost, before := new(packet.Batch), int64(0), uint64(0)
		for round := range 4 {
			for i := range 20 + round {
				if i%7 == 6 && round%2 == 1 {
					b.Reset()
					lost += int64(devices[0].Rx()[0].Recv(b))
					devices[0].Rx()[0].Release()
				}
				cross(b, devices)
				l.Step(i % 2)
			}
			quiet := 0
			totals, bad := l.Rest(func(received int) bool {
				if quiet++; cross(b, devices)+received > 0 {
					quiet = 0
				}
				return quiet == 3
			})
			if totals.Lost != lost || bad != 0 || totals.Received <= before || totals.Misused != 0 {
				t.Fatalf("round %d, %#x: %+v and %d bad after %d frames were lost", round, features, totals, bad, lost)
			}
			before = totals.Received
		}
		if lost == 0 {
			t.Fatal("nothing was lost")
		}
	}
}

// BenchmarkForward measures how long the device takes to forward a batch, without parsing. The guests
// run on the same core, but only the device's time is measured.
func BenchmarkForward(b *testing.B) {
	for name, c := range map[string]vhosttest.LoadConfig{
		"64":        {Core: -1},
		"1500":      {Core: -1, FrameSize: 1500},
		"packed-64": {Core: -1, Features: vhost.FeatureVersion1 | vhost.FeatureMergeable | vhost.FeatureRingPacked},
	} {
		b.Run(name, func(b *testing.B) {
			l, err := vhosttest.NewLoad(c)
			if err != nil {
				b.Fatal(err)
			}
			defer l.Close()
			devices := []*vhost.Device{open(b, l.Guests[0], nil), open(b, l.Guests[1], nil)}
			batch := new(packet.Batch)
			total, spent := 0, time.Duration(0)
			b.ResetTimer()
			for total < b.N {
				begin := time.Now()
				for range 8 {
					total += cross(batch, devices)
				}
				spent += time.Since(begin)
				l.Step(0)
				l.Step(1)
			}
			b.ReportMetric(float64(spent.Nanoseconds())/float64(total), "ns/frame")
		})
	}
}

// BenchmarkLive measures forwarding on core 0, with the load generator on core 1. The
// machine must be idle.
func BenchmarkLive(b *testing.B) {
	for name, c := range map[string]vhosttest.LoadConfig{
		"64":       {Core: 1},
		"64-flows": {Core: 1, Flows: 10000},
		"1500":     {Core: 1, FrameSize: 1500},
	} {
		b.Run(name, func(b *testing.B) { live(b, c) })
	}
}

func live(b *testing.B, c vhosttest.LoadConfig) {
	l, err := vhosttest.NewLoad(c)
	if err != nil {
		b.Fatal(err)
	}
	defer l.Close()
	devices := []*vhost.Device{open(b, l.Guests[0], nil), open(b, l.Guests[1], nil)}
	stop, done := make(chan struct{}), make(chan error)
	go func() {
		_, err := l.Run(time.Hour, stop)
		done <- err
	}()
	worker := make(chan [2]int)
	begin := time.Now()
	go func() {
		runtime.LockOSThread() // never unlocked, so that the pinned thread ends with its goroutine
		if err := cpu.Pin(0); err != nil {
			b.Error(err)
		}
		batch, total, empty := new(packet.Batch), 0, 0
		for total < b.N {
			n := cross(batch, devices)
			if total += n; n == 0 {
				empty++
				cpu.Pause(8)
			}
		}
		worker <- [2]int{total, empty}
	}()
	r := <-worker
	elapsed := time.Since(begin)
	close(stop)
	if err := <-done; err != nil {
		b.Fatal(err)
	}
	b.ReportMetric(float64(r[0])/elapsed.Seconds()/1e6, "Mpps")
	b.ReportMetric(float64(r[1])*1000/float64(r[0]), "empty/1000")
}

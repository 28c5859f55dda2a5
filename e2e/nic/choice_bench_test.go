// SPDX-License-Identifier: Apache-2.0

package nic

import (
	"strings"
	"testing"

	"weft/api"
	"weft/e2e/lab"
)

// cards are the emulated cards of the tests, with QEMU's names and options.
var cards = []struct{ name, model, options string }{
	{"igb", "igb", ""},
	{"virtio_net", "virtio-net-pci", ",iommu_platform=on,disable-legacy=on"},
}

// floodSeconds is the length of a flood in seconds.
const floodSeconds = 3

// BenchmarkUplinkKinds compares type=uplink with type=af_xdp and type=af_packet, on drivers with
// AF_XDP zero-copy. QEMU emulates the cards, and without KVM the processors as well, so only
// results of one card are comparable. The metric worker-ns/frame is the time of the receiving
// host's worker for each frame, without idle passes.
func BenchmarkUplinkKinds(b *testing.B) {
	for _, card := range cards {
		b.Run(card.name, func(b *testing.B) {
			left, right := pair(b, card.model, card.options)
			left.start()
			right.start()
			left.configureAs(right, "uplink")
			right.configureAs(left, "uplink")
			for _, kind := range []string{"uplink", "af_xdp", "af_packet"} {
				b.Run(kind, func(b *testing.B) { measureKind(b, left, right, kind) })
			}
		})
	}
}

// measureKind replaces the uplink of both hosts by one of the kind, and measures it.
func measureKind(b *testing.B, left, right *host, kind string) {
	for _, h := range []*host{left, right} {
		h.t = b
		h.deleteUplink()
		h.weft("add-port", "uplink", "type="+kind, "dev=eth0")
	}
	reach(b, left.guest, right.guestIP)
	b.Logf("%s: mode %s", kind, right.port("uplink").Mode)
	var tcp, udp, lost, trip, cost float64
	for b.Loop() {
		p, err := lab.Ping(left.guest, right.guestIP, 20)
		if err != nil {
			b.Fatal(err)
		}
		trip += p.AvgMS
		f, err := lab.Iperf(left.guest, right.guest, right.guestIP, floodSeconds)
		if err != nil {
			b.Fatal(err)
		}
		tcp += f.BitsPerSecond / 1e6
		before := right.worker()
		if f, err = lab.Iperf(left.guest, right.guest, right.guestIP, floodSeconds, "-u", "-b", "0", "-l", "64"); err != nil {
			b.Fatal(err)
		}
		after := right.worker()
		udp += f.BitsPerSecond / (64 * 8)
		lost += f.LostPercent
		cost += float64(after.BusyNS-before.BusyNS) / float64(max(after.Frames-before.Frames, 1))
	}
	n := float64(b.N)
	b.ReportMetric(tcp/n, "tcp-Mbit/s")
	b.ReportMetric(udp/n, "udp-frames/s")
	b.ReportMetric(lost/n, "udp-lost-%")
	b.ReportMetric(cost/n, "worker-ns/frame")
	b.ReportMetric(trip/n, "ping-ms")
}

// deleteUplink deletes the uplink. It tries again, because an emulated machine may take
// longer than weft waits after a flood.
func (h *host) deleteUplink() {
	h.t.Helper()
	eventually(h.t, func() error {
		out, err := h.Try("weft", "--socket", "/run/weft.sock", "del-port", "uplink")
		if err != nil && strings.Contains(out+err.Error(), "no such port") {
			return nil
		}
		return err
	})
}

func (h *host) worker() api.Worker {
	h.t.Helper()
	s := h.show()
	if len(s.Workers) == 0 {
		h.t.Fatalf("%s: no worker", h.Name)
	}
	return s.Workers[0]
}

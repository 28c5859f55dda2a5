// SPDX-License-Identifier: Apache-2.0

package nic

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"text/tabwriter"

	"weft/api"
	"weft/e2e/lab"
)

// cards are the emulated cards of the tests, with QEMU's names and options.
var cards = []struct {
	name, model, options string
	// outermost is true if QEMU's card finishes the checksum of the outermost UDP or TCP
	// header although the driver asks for an inner one (igb_setup_tx_offloads of QEMU 10),
	// and segments no UDP. TCP then passes neither Linux's tunnel nor the switch's tunnel
	// through packet sockets. The benchmark switches the checksums of such a card off, so the
	// kernel computes them.
	outermost bool
}{
	{"igb", "igb", "", true},
	{"virtio_net", "virtio-net-pci", ",iommu_platform=on,disable-legacy=on", false},
}

// uplinkKinds are the types of uplinks that the benchmark compares.
var uplinkKinds = []string{"uplink", "af_xdp", "af_packet"}

// floodSeconds is the length of a flood in seconds.
const floodSeconds = 3

// uplinkFigures are the metrics of one measurement, in the order of a row of the table.
var uplinkFigures = []string{"tcp-Mbit/s", "udp-frames/s", "udp-lost-%", "worker-ns/frame", "ping-ms"}

// BenchmarkUplinkKinds compares type=uplink with type=af_xdp and type=af_packet, on drivers with
// AF_XDP zero-copy. Each round measures all kinds. QEMU emulates the cards, and without KVM the
// processors as well, so only results of one card are comparable. The figure worker-ns/frame is
// the time of the receiving host's worker for each frame, without idle passes. The metrics are
// medians; the table that the benchmark logs also has the least and the greatest result.
func BenchmarkUplinkKinds(b *testing.B) {
	for _, card := range cards {
		b.Run(card.name, func(b *testing.B) {
			left, right := pair(b, card.model, card.options)
			for _, h := range []*host{left, right} {
				h.t = b
				if card.outermost {
					h.Run("ethtool", "-K", "eth0", "tx", "off")
				}
				h.start()
			}
			left.configureAs(right, "uplink")
			right.configureAs(left, "uplink")
			results, modes := map[string][]float64{}, map[string]string{}
			for b.Loop() {
				for _, kind := range uplinkKinds {
					modes[kind] = replaceUplink(left, right, kind)
					figures, err := measureUplink(left, right)
					if err != nil {
						b.Fatalf("%s: %v", kind, err)
					}
					b.Logf("%s: %.4g", kind, figures)
					for i, f := range figures {
						metric := kind + ":" + uplinkFigures[i]
						results[metric] = append(results[metric], f)
					}
				}
			}
			b.Logf("%s, medians of %d rounds (least to greatest)\n%s", card.name, b.N, kindTable(results, modes))
			for metric, values := range results {
				b.ReportMetric(median(values), metric)
			}
		})
	}
}

// replaceUplink replaces the uplink of both hosts by one of the kind, and returns the mode of
// the right host's uplink.
func replaceUplink(left, right *host, kind string) (mode string) {
	for _, h := range []*host{left, right} {
		h.deleteUplink()
		h.weft("add-port", "uplink", "type="+kind, "dev=eth0")
	}
	reach(left.t, left.guest, right.guestIP)
	return right.port("uplink").Mode
}

// measureUplink returns the values of uplinkFigures.
func measureUplink(left, right *host) ([]float64, error) {
	p, err := lab.Ping(left.guest, right.guestIP, 20)
	if err != nil {
		return nil, err
	}
	tcp, err := lab.Iperf(left.guest, right.guest, right.guestIP, floodSeconds)
	if err != nil {
		return nil, err
	}
	before := right.worker()
	udp, err := lab.Iperf(left.guest, right.guest, right.guestIP, floodSeconds, "-u", "-b", "0", "-l", "64")
	if err != nil {
		return nil, err
	}
	after := right.worker()
	cost := float64(after.BusyNS-before.BusyNS) / float64(max(after.Frames-before.Frames, 1))
	return []float64{tcp.BitsPerSecond / 1e6, udp.BitsPerSecond / (64 * 8), udp.LostPercent, cost, p.AvgMS}, nil
}

// kindTable returns a table with a row for each kind of uplink and a column for each figure.
func kindTable(results map[string][]float64, modes map[string]string) string {
	var text strings.Builder
	t := tabwriter.NewWriter(&text, 0, 0, 2, ' ', 0)
	fmt.Fprintf(t, "KIND\tMODE\t%s\n", strings.Join(uplinkFigures, "\t"))
	for _, kind := range uplinkKinds {
		fmt.Fprintf(t, "%s\t%s", kind, modes[kind])
		for _, figure := range uplinkFigures {
			values := results[kind+":"+figure]
			fmt.Fprintf(t, "\t%.4g (%.4g-%.4g)", median(values), slices.Min(values), slices.Max(values))
		}
		fmt.Fprintln(t)
	}
	t.Flush()
	return text.String()
}

// median returns the middle of the sorted values. Of two values in the middle it returns the greater one.
func median(values []float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	return sorted[len(sorted)/2]
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

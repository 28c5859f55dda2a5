// SPDX-License-Identifier: Apache-2.0

package main

// uplinkChoiceFamily returns rows that compare type=uplink with af_packet and af_xdp on a veth.
// type=uplink chooses one of these two itself. The rows have large frames, small frames and round
// trips.
func uplinkChoiceFamily() []*experiment {
	peers := []string{weftPeer, weftPacketPeer, weftXDPPeer}
	rows := []struct {
		name      string
		spin      bool
		unit      string
		roundTrip bool // each worker has a core of its own
		measure   func(o *overlayRig) float64
	}{
		{"tcp1", false, "bit/s", false, func(o *overlayRig) float64 { return o.iperf("-P", "1") }},
		{"udp-64", false, "bit/s", false, func(o *overlayRig) float64 { return o.iperf("-u", "-b", "0", "-l", "64") }},
		{"udp-64-8-flows", false, "bit/s", false, func(o *overlayRig) float64 { return o.iperf("-u", "-b", "0", "-l", "64", "-P", "8") }},
		{"udp-1400", false, "bit/s", false, func(o *overlayRig) float64 { return o.iperf("-u", "-b", "0", "-l", "1400") }},
		{"round-trip-spin-64", true, "s", true, func(o *overlayRig) float64 { return o.roundTrips(64) }},
		{"round-trip-spin-1024", true, "s", true, func(o *overlayRig) float64 { return o.roundTrips(1024) }},
		{"round-trip-sleep-64", false, "s", true, func(o *overlayRig) float64 { return o.roundTrips(64) }},
	}
	var list []*experiment
	for _, row := range rows {
		list = append(list, &experiment{name: "uplink-choice/" + row.name, unit: row.unit, smallerIsBetter: row.roundTrip, peers: peers,
			measure: func(r *run, peer string) float64 {
				o := newOverlay(r, peer, overlayShape{spin: row.spin, cores: row.roundTrip})
				return row.measure(o)
			}})
	}
	return list
}

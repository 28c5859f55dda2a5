// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"net/netip"
	"regexp"
	"strconv"
	"time"

	"weft/e2e/lab"
)

// The experiments below compare one AF_XDP queue of Weft with DPDK's net_af_xdp, without a switch.
// Both run on a veth in copy mode.

func uplinkFamily() []*experiment {
	var list []*experiment
	for _, size := range []int{64, 1500} {
		for _, way := range []string{"send", "receive"} {
			list = append(list, &experiment{name: fmt.Sprintf("uplink-%s/%d", way, size), unit: "frames/s", peers: []string{weftPeer, testpmdPeer},
				measure: func(r *run, peer string) float64 { return measureUplink(r, peer, way, size, 0) }})
		}
	}
	// With busy polling, the worker's own system calls run the device's receive path.
	list = append(list, &experiment{name: "uplink-receive-busypoll/64", unit: "frames/s", peers: []string{weftPeer, testpmdPeer},
		measure: func(r *run, peer string) float64 { return measureUplink(r, peer, "receive", 64, 50) }})
	return list
}

// measureUplink returns the frames per second in one direction. way is "send" or "receive". busyPoll
// is the time of busy polling in µs, or 0 for none.
func measureUplink(r *run, peer, way string, size, busyPoll int) float64 {
	w := newSite(r)
	if way == "receive" {
		w.detach() // free for the generator's own XDP program
		generator := r.start("generator", netnsCommand(w.sink, testpmdUplink(w, farEnd, "txonly", size)...)...)
		prompt(generator)
		generator.say("start")
	}
	if peer == weftPeer {
		return weftUplink(r, w, way, size, busyPoll)
	}
	mode := map[string]string{"send": "txonly", "receive": "rxonly"}[way]
	p := r.start("testpmd-uplink", netnsCommand(w.netns, testpmdUplink(w, w.dev, mode, size)...)...)
	prompt(p)
	p.say("start")
	time.Sleep(warmUp)
	if way == "send" {
		return w.rate(r.length)
	}
	watch(p, r.length)
	return receivedRates(p, 1, 1)[0]
}

// testpmdUplink returns a command line of testpmd for one AF_XDP queue of the device dev. At the far
// end, testpmd is the generator and runs on guestCore.
func testpmdUplink(w *site, dev, mode string, size int) []string {
	worker, other := switchCore, guestCore
	if dev == farEnd {
		worker, other = guestCore, switchCore
	}
	return []string{"dpdk-testpmd", "-l", fmt.Sprintf("%d,%d", worker, other), "--main-lcore", fmt.Sprint(other),
		"--no-pci", "--in-memory", "--socket-mem", "256", "--file-prefix=weft-" + dev,
		"--vdev=net_af_xdp0,iface=" + dev, "--", "-i", "--nb-cores=1", "--rxd=1024", "--txd=1024", "--forward-mode=" + mode,
		"--tx-ip=" + w.remote + "," + w.local, "--tx-udp=50000,4789", fmt.Sprint("--txpkts=", size)}
}

// weftUplink runs one of Weft's workers on an AF_XDP queue of the uplink. It returns the frames per
// second.
func weftUplink(r *run, w *site, way string, size, busyPoll int) float64 {
	p := startAs(r, "weft-uplink", w.netns, driveVerb, driveSpec{Dev: w.dev, Local: netip.MustParseAddr(w.local), Send: way == "send", Size: size,
		Length: r.length, BusyPoll: busyPoll})
	if way == "send" {
		time.Sleep(warmUp)
		lab.Check(p.alive())
		return w.rate(r.length)
	}
	p.wait(r.length + 10*time.Second)
	m := regexp.MustCompile(`frames a second: (\d+)`).FindStringSubmatch(p.output())
	if m == nil {
		lab.Check(fmt.Errorf("no rate: %s", p.tail()))
	}
	return lab.Must(strconv.ParseFloat(m[1], 64))
}

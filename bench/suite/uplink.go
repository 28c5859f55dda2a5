// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"regexp"
	"strconv"
	"time"
)

// Experiments with an uplink alone, without a switch: one AF_XDP queue of a veth
// sends or receives as fast as it can, compared with DPDK's net_af_xdp. On a veth,
// both use AF_XDP's copy mode.

func uplinkFamily() []*experiment {
	var list []*experiment
	for _, size := range []int{64, 1500} {
		for _, way := range []string{"send", "receive"} {
			list = append(list, &experiment{name: fmt.Sprintf("uplink-%s/%d", way, size), unit: "frames/s", peers: []string{weftPeer, testpmdPeer},
				do: func(r *run, peer string) (float64, error) { return measureUplink(r, peer, way, size, 0) }})
		}
	}
	// With busy polling, the worker's system calls run the device's receive path.
	list = append(list, &experiment{name: "uplink-receive-busypoll/64", unit: "frames/s", peers: []string{weftPeer, testpmdPeer},
		do: func(r *run, peer string) (float64, error) { return measureUplink(r, peer, "receive", 64, 50) }})
	return list
}

// measureUplink returns the frames a second in one direction. The argument way is
// "send" or "receive". The argument busyPoll is Weft's busy-polling time in µs; 0
// means no busy polling.
func measureUplink(r *run, peer, way string, size, busyPoll int) (float64, error) {
	w, err := newSite(r)
	if err != nil {
		return 0, err
	}
	if way == "receive" {
		w.detach() // detaches the counting XDP program, because the generator attaches its own
		generator, err := r.start("generator", in(w.sink, testpmdUplink(w, farEnd, "txonly", size)...)...)
		if err != nil {
			return 0, err
		}
		if err := prompt(generator); err != nil {
			return 0, err
		}
		generator.say("start")
	}
	if peer == weftPeer {
		return weftUplink(r, w, way, size, busyPoll)
	}
	mode := map[string]string{"send": "txonly", "receive": "rxonly"}[way]
	p, err := r.start("testpmd-uplink", in(w.netns, testpmdUplink(w, w.dev, mode, size)...)...)
	if err != nil {
		return 0, err
	}
	if err := prompt(p); err != nil {
		return 0, err
	}
	p.say("start")
	time.Sleep(warmUp)
	if way == "send" {
		return w.rate(r.length)
	}
	watch(p, r.length)
	rates, err := receivedRates(p, 1, 1)
	if err != nil {
		return 0, err
	}
	return rates[0], nil
}

// testpmdUplink returns the command line of a testpmd that uses one AF_XDP queue of
// the device dev. On the uplink, it runs on switchCore. On the other end of the veth,
// it runs on guestCore and sends VXLAN datagrams to the uplink.
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

// weftUplink starts this program as a worker that uses the uplink's AF_XDP queue, and
// returns the frames a second.
func weftUplink(r *run, w *site, way string, size, busyPoll int) (float64, error) {
	p, err := r.startSelf("weft-uplink", w.netns, driveVerb, "-dev", w.dev, "-way", way, "-size", fmt.Sprint(size),
		"-local", w.local, "-length", r.length.String(), "-busy-poll", fmt.Sprint(busyPoll))
	if err != nil {
		return 0, err
	}
	if way == "send" {
		time.Sleep(warmUp)
		if err := p.alive(); err != nil {
			return 0, err
		}
		return w.rate(r.length)
	}
	p.wait(r.length + 10*time.Second)
	m := regexp.MustCompile(`frames a second: (\d+)`).FindStringSubmatch(p.output())
	if m == nil {
		return 0, fmt.Errorf("no rate: %s", p.tail())
	}
	return strconv.ParseFloat(m[1], 64)
}

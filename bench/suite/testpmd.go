// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"time"

	"weft/e2e/lab"
)

// testpmdSwitch is DPDK's testpmd, which forwards between two vhost ports. It looks nothing up, so its
// rate is an upper limit for switches.
type testpmdSwitch struct{ proc *process }

func (t *testpmdSwitch) up(r *run, s setup) {
	if s.site != nil {
		lab.Check(errors.New("has no tunnels"))
	}
	args := []string{"dpdk-testpmd", "-l", "0,1", "--main-lcore", fmt.Sprint(guestCore), "--no-pci", "--in-memory",
		"--socket-mem", "256", "--file-prefix=weft-switch"}
	for i := range s.guests {
		args = append(args, fmt.Sprintf("--vdev=net_vhost%d,iface=%s,client=1", i, r.socket(i)))
	}
	args = append(args, "--", "-i", "--auto-start", "--nb-cores=1", "--rxd=1024", "--txd=1024", "--forward-mode=io")
	t.proc = r.start("testpmd-switch", args...)
}

// guests is a testpmd process with two virtio-user devices on guestCore.
type guests struct{ *process }

// startGuests starts two guests that end with the run. In testpmd's mode io, they return each frame
// that they receive. In mode txonly, they only send.
func startGuests(r *run, mode string, size int) *guests {
	device := func(i int) string {
		return fmt.Sprintf("--vdev=net_virtio_user%d,path=%s,server=1,queue_size=1024,mrg_rxbuf=1,in_order=0,packed_vq=0,mac=52:54:00:00:00:0%d", i, r.socket(i), i+1)
	}
	p := r.start("testpmd-guest", "dpdk-testpmd", "-l", "0,1", "--main-lcore", fmt.Sprint(switchCore), "--no-pci", "--in-memory", "--socket-mem", "512",
		"--single-file-segments", "--file-prefix=weft-guest", device(0), device(1),
		"--", "-i", "--nb-cores=1", "--txd=1024", "--rxd=1024", "--forward-mode="+mode)
	prompt(p)
	time.Sleep(2 * time.Second) // the switch tries once a second to connect, and does so meanwhile
	p.say(fmt.Sprint("set txpkts ", size))
	return &guests{p}
}

// warmUp is how long a load runs before the measurement begins.
const warmUp = time.Second

// upCirculating starts a switch and two guests. The guests return 64-byte frames to each other.
func (r *run) upCirculating(sw vswitch) {
	g := r.upWithGuests(sw, setup{flows: pairFlows}, "io", 64)
	g.say("start tx_first 8")
	time.Sleep(warmUp)
}

func watch(p *process, length time.Duration) {
	p.say("show port stats all")
	time.Sleep(length)
	p.say("show port stats all")
	p.say("stop")
}

// receivedRates ends testpmd, which then writes its output. It returns the received frames per second,
// one value for each earlier call of watch.
func receivedRates(p *process, ports, times int) []float64 {
	p.say("quit") // testpmd writes its buffered output to a file only when it ends
	p.wait(10 * time.Second)
	found := regexp.MustCompile(`Rx-pps:\s+(\d+)`).FindAllStringSubmatch(p.output(), -1)
	if len(found) != 2*ports*times {
		lab.Check(fmt.Errorf("testpmd printed %d rates, want %d: %s", len(found), 2*ports*times, p.tail()))
	}
	rates := make([]float64, times)
	for i := range rates {
		for _, rate := range found[(2*i+1)*ports:][:ports] {
			pps := lab.Must(strconv.ParseFloat(rate[1], 64))
			rates[i] += pps
		}
	}
	return rates
}

func prompt(p *process) {
	eventually(20*time.Second, func() {
		lab.Check(p.alive())
		if !regexp.MustCompile(`testpmd> `).MatchString(p.output()) {
			lab.Check(fmt.Errorf("testpmd is not ready: %s", p.tail()))
		}
	})
}

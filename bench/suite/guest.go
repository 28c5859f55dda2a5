package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"time"
)

// guests runs dpdk-testpmd as the two guests: virtio-user devices in server
// mode on guestCore. It returns the frames a second that the switch carried,
// measured over seconds.
//
// Without a tunnel, frames circulate: bursts of 32 are sent once and forwarded
// for ever between the two devices, through the switch; the rate is what both
// receive. With a tunnel, the first device sends what it can and the rate is
// what count says arrived at the far end.
func guests(dir string, sc *scenario, bursts, seconds int) (float64, error) {
	for i := range 2 {
		os.Remove(filepath.Join(dir, fmt.Sprintf("vh%d.sock", i)))
	}
	device := func(i int) string {
		return fmt.Sprintf("--vdev=net_virtio_user%d,path=%s/vh%d.sock,server=1,queue_size=1024,mrg_rxbuf=1,in_order=0,packed_vq=0,mac=52:54:00:00:00:0%d",
			i, dir, i, i+1)
	}
	mode := "io"
	if sc.netns != "" {
		mode = "txonly"
	}
	p, err := start(dir, "testpmd-guest", "dpdk-testpmd", "-l", "0,1", "--main-lcore", "0", "--no-pci", "--in-memory", "--socket-mem", "512",
		"--single-file-segments", "--file-prefix=weft-guest", device(0), device(1),
		"--", "-i", "--nb-cores=1", "--txd=1024", "--rxd=1024", "--forward-mode="+mode)
	if err != nil {
		return 0, err
	}
	defer p.stop()
	if err := eventually(20*time.Second, func() error {
		if err := p.alive(); err != nil {
			return err
		}
		if !regexp.MustCompile(`testpmd> `).MatchString(p.output()) {
			return fmt.Errorf("testpmd is not ready: %s", p.tail())
		}
		return nil
	}); err != nil {
		return 0, err
	}
	time.Sleep(2 * time.Second) // the switch reconnects at most once a second
	p.say(fmt.Sprintf("set txpkts %d", sc.size))
	if sc.netns != "" {
		p.say("start")
	} else {
		p.say(fmt.Sprintf("start tx_first %d", bursts))
	}
	time.Sleep(2 * time.Second)
	if sc.netns != "" {
		return sc.rateAtPeer(time.Duration(seconds) * time.Second)
	}
	p.say("show port stats all")
	time.Sleep(time.Duration(seconds) * time.Second)
	p.say("show port stats all")
	p.say("stop")
	p.say("quit") // what it prints into a file comes only as it ends
	p.wait(10 * time.Second)
	rates := regexp.MustCompile(`Rx-pps:\s+(\d+)`).FindAllStringSubmatch(p.output(), -1)
	if len(rates) != 4 {
		return 0, fmt.Errorf("testpmd printed %d rates, want 4: %s", len(rates), p.tail())
	}
	total := 0.0
	for _, r := range rates[2:] {
		pps, err := strconv.ParseFloat(r[1], 64)
		if err != nil {
			return 0, err
		}
		total += pps
	}
	return total, nil
}

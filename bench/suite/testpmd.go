package main

import (
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"time"
)

// testpmdSwitch is DPDK's vhost forwarding, which looks at nothing: the limit.
type testpmdSwitch struct{ proc *process }

func (t *testpmdSwitch) up(r *run, s setup) error {
	if s.site != nil {
		return errors.New("has no tunnels")
	}
	args := []string{"-l", "0,1", "--main-lcore", fmt.Sprint(guestCore), "--no-pci", "--in-memory",
		"--socket-mem", "256", "--file-prefix=weft-switch"}
	for i := range s.guests {
		args = append(args, fmt.Sprintf("--vdev=net_vhost%d,iface=%s,client=1", i, r.socket(i)))
	}
	args = append(args, "--", "-i", "--auto-start", "--nb-cores=1", "--rxd=1024", "--txd=1024", "--forward-mode=io")
	var err error
	t.proc, err = start(r.dir, "testpmd-switch", "dpdk-testpmd", args...)
	return err
}

func (t *testpmdSwitch) down() {
	t.proc.stop()
	t.proc = nil
}

// guests is dpdk-testpmd as two guests: virtio-user devices in server mode on
// guestCore, whose memory, rings and driver are DPDK's.
type guests struct{ *process }

// startGuests starts them and waits for the switch to connect. mode is testpmd's
// forwarding mode: io sends back what comes by the other device, txonly sends
// what it can by both.
func startGuests(r *run, mode string, size int) (*guests, error) {
	device := func(i int) string {
		return fmt.Sprintf("--vdev=net_virtio_user%d,path=%s,server=1,queue_size=1024,mrg_rxbuf=1,in_order=0,packed_vq=0,mac=52:54:00:00:00:0%d", i, r.socket(i), i+1)
	}
	p, err := start(r.dir, "testpmd-guest", "dpdk-testpmd", "-l", "0,1", "--main-lcore", fmt.Sprint(switchCore), "--no-pci", "--in-memory", "--socket-mem", "512",
		"--single-file-segments", "--file-prefix=weft-guest", device(0), device(1),
		"--", "-i", "--nb-cores=1", "--txd=1024", "--rxd=1024", "--forward-mode="+mode)
	if err != nil {
		return nil, err
	}
	if err := prompt(p); err != nil {
		p.stop()
		return nil, err
	}
	time.Sleep(2 * time.Second) // a switch reconnects at most once a second
	p.say(fmt.Sprint("set txpkts ", size))
	return &guests{p}, nil
}

// warmUp is how long a load runs before it is measured.
const warmUp = time.Second

// receivedRate measures what testpmd's ports receive together, and ends it.
func receivedRate(p *process, ports int, length time.Duration) (float64, error) {
	p.say("show port stats all")
	time.Sleep(length)
	p.say("show port stats all")
	p.say("stop")
	p.say("quit") // what it prints into a file comes only as it ends
	p.wait(10 * time.Second)
	rates := regexp.MustCompile(`Rx-pps:\s+(\d+)`).FindAllStringSubmatch(p.output(), -1)
	if len(rates) != 2*ports {
		return 0, fmt.Errorf("testpmd printed %d rates, want %d: %s", len(rates), 2*ports, p.tail())
	}
	total := 0.0
	for _, r := range rates[ports:] {
		pps, err := strconv.ParseFloat(r[1], 64)
		if err != nil {
			return 0, err
		}
		total += pps
	}
	return total, nil
}

// prompt waits until testpmd takes commands.
func prompt(p *process) error {
	return eventually(20*time.Second, func() error {
		if err := p.alive(); err != nil {
			return err
		}
		if !regexp.MustCompile(`testpmd> `).MatchString(p.output()) {
			return fmt.Errorf("testpmd is not ready: %s", p.tail())
		}
		return nil
	})
}

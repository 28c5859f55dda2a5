package main

import (
	"errors"
	"flag"
	"fmt"
	"net/netip"
	"os"
	"os/signal"
	"regexp"
	"strconv"
	"sync/atomic"
	"syscall"
	"time"

	"weft/internal/cpu"
	"weft/packet"
	"weft/port"
	"weft/xsk"
)

// The uplink alone, without a switch around it: one AF_XDP queue of a veth that
// sends or receives what it can, beside DPDK's net_af_xdp doing the same. Both
// bind as the device allows, which is copy mode on a veth.

// driver is a peer that has an uplink of its own to measure.
type driver interface {
	// drive sends or receives through the scenario's uplink and returns frames a
	// second: those that reached the far end, or that it received.
	drive(dir string, sc *scenario, seconds int) (float64, error)
}

func uplinkScenarios(size int) []*scenario {
	return []*scenario{
		{title: fmt.Sprintf("uplink-send/%d", size), size: size, tunnel: true, way: "send"},
		{title: fmt.Sprintf("uplink-receive/%d", size), size: size, tunnel: true, way: "receive"},
	}
}

// measureUplink is once for a scenario of the uplink alone.
func measureUplink(dir string, sc *scenario, p peer, seconds int) (float64, error) {
	d, ok := p.(driver)
	if !ok {
		return 0, errors.New("is not measured here")
	}
	if sc.way == "send" {
		return d.drive(dir, sc, seconds)
	}
	sc.attached.Close() // the generator brings a program of its own
	generator, err := start(dir, "generator", "ip", append([]string{"netns", "exec", sc.sink},
		testpmdUplink("u2", "generator", "txonly", sc)...)...)
	if err != nil {
		return 0, err
	}
	defer generator.stop()
	if err := prompt(generator); err != nil {
		return 0, err
	}
	generator.say("start")
	return d.drive(dir, sc, seconds)
}

// testpmdUplink is a testpmd on one AF_XDP queue. Its frames are VXLAN to the
// scenario's host, by their addresses.
func testpmdUplink(dev, prefix, mode string, sc *scenario) []string {
	worker, other := switchCore, guestCore
	if mode == "txonly" && dev != sc.uplink {
		worker, other = guestCore, switchCore
	}
	return []string{"dpdk-testpmd", "-l", fmt.Sprintf("%d,%d", worker, other), "--main-lcore", fmt.Sprint(other),
		"--no-pci", "--in-memory", "--socket-mem", "256", "--file-prefix=weft-" + prefix,
		"--vdev=net_af_xdp0,iface=" + dev, "--", "-i", "--nb-cores=1", "--rxd=1024", "--txd=1024", "--forward-mode=" + mode,
		"--tx-ip=" + sc.remote + "," + sc.local, "--tx-udp=50000,4789", fmt.Sprint("--txpkts=", sc.size)}
}

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

func (t *testpmdSwitch) drive(dir string, sc *scenario, seconds int) (float64, error) {
	mode := "rxonly"
	if sc.way == "send" {
		mode = "txonly"
	}
	args := sc.inNamespace(testpmdUplink(sc.uplink, "uplink", mode, sc)...)
	var err error
	if t.proc, err = start(dir, "testpmd-uplink", args[0], args[1:]...); err != nil {
		return 0, err
	}
	if err := prompt(t.proc); err != nil {
		return 0, err
	}
	t.proc.say("start")
	time.Sleep(2 * time.Second)
	if sc.way == "send" {
		return sc.rateAtPeer(time.Duration(seconds) * time.Second)
	}
	t.proc.say("show port stats all")
	time.Sleep(time.Duration(seconds) * time.Second)
	t.proc.say("show port stats all")
	t.proc.say("stop")
	t.proc.say("quit") // what it prints into a file comes only as it ends
	t.proc.wait(10 * time.Second)
	rates := regexp.MustCompile(`Rx-pps:\s+(\d+)`).FindAllStringSubmatch(t.proc.output(), -1)
	if len(rates) != 2 {
		return 0, fmt.Errorf("testpmd printed %d rates, want 2: %s", len(rates), t.proc.tail())
	}
	return strconv.ParseFloat(rates[1][1], 64)
}

// drive has this program itself, in the uplink's namespace, do what a worker
// does with an uplink's queues.
func (w *weft) drive(dir string, sc *scenario, seconds int) (float64, error) {
	self, err := os.Executable()
	if err != nil {
		return 0, err
	}
	args := sc.inNamespace(self, driveVerb, "-dev", sc.uplink, "-way", sc.way, "-size", fmt.Sprint(sc.size),
		"-local", sc.local, "-seconds", fmt.Sprint(seconds))
	if w.daemon, err = start(dir, "weft-uplink", args[0], args[1:]...); err != nil {
		return 0, err
	}
	if sc.way == "send" {
		time.Sleep(2 * time.Second)
		if err := w.daemon.alive(); err != nil {
			return 0, err
		}
		return sc.rateAtPeer(time.Duration(seconds) * time.Second)
	}
	w.daemon.wait(time.Duration(seconds+10) * time.Second)
	m := regexp.MustCompile(`frames a second: (\d+)`).FindStringSubmatch(w.daemon.output())
	if m == nil {
		return 0, fmt.Errorf("no rate: %s", w.daemon.tail())
	}
	return strconv.ParseFloat(m[1], 64)
}

// driveVerb is the argument with which this program is the uplink's worker.
const driveVerb = "drive-uplink"

func driveUplink(args []string) error {
	flags := flag.NewFlagSet(driveVerb, flag.ContinueOnError)
	dev := flags.String("dev", "", "device")
	way := flags.String("way", "", "send or receive")
	size := flags.Int("size", 64, "bytes of a frame")
	local := flags.String("local", "", "address of the tunnel endpoint")
	seconds := flags.Int("seconds", 3, "length of a measurement of receiving")
	if err := flags.Parse(args); err != nil {
		return err
	}
	uplink, err := xsk.Setup(xsk.Config{Dev: *dev, Queues: 1})
	if err != nil {
		return err
	}
	defer uplink.Close()
	endpoint, err := netip.ParseAddr(*local)
	if err == nil {
		err = uplink.SetEndpoints([]netip.AddrPort{netip.AddrPortFrom(endpoint, 4789)})
	}
	if err != nil {
		return err
	}
	spec, err := uplink.Spec()
	if err != nil {
		return err
	}
	var fds []int
	for _, fd := range uplink.FDs() {
		if fd, err = syscall.Dup(fd); err != nil {
			return err
		}
		fds = append(fds, fd)
	}
	device, err := xsk.Open(spec, fds)
	if err != nil {
		return err
	}
	defer device.Close()
	stopped := make(chan os.Signal, 1)
	signal.Notify(stopped, os.Interrupt, syscall.SIGTERM)
	var stop atomic.Bool
	var count atomic.Uint64
	done := make(chan error, 1)
	go func() {
		if err := cpu.Pin(switchCore); err != nil {
			done <- err
			return
		}
		if *way == "send" {
			sendAll(device.Tx()[0], *size, &stop)
		} else {
			receiveAll(device.Rx()[0], &stop, &count)
		}
		done <- nil
	}()
	if *way == "receive" {
		time.Sleep(2 * time.Second)
		before, from := count.Load(), time.Now()
		time.Sleep(time.Duration(*seconds) * time.Second)
		fmt.Printf("frames a second: %.0f\n", float64(count.Load()-before)/time.Since(from).Seconds())
	} else {
		select {
		case <-stopped:
		case err := <-done:
			return err
		}
	}
	stop.Store(true)
	return <-done
}

// sendAll sends batches of equal frames: a private header, and the rest in
// memory as a guest's would be.
func sendAll(tx port.Tx, size int, stop *atomic.Bool) {
	b := new(packet.Batch)
	rest := make([]byte, 2048)
	order := make([]uint8, packet.BatchSize)
	for i := range order {
		order[i] = uint8(i)
		f, h := b.Next()
		header := copy(h[:min(size, packet.InnerHeader)], rest)
		if size > header {
			b.AddSpan(f, packet.Address(rest), uint32(size-header))
		}
		b.Commit(f, header)
	}
	for !stop.Load() {
		tx.Send(b, order)
		tx.Flush()
	}
}

func receiveAll(rx port.Rx, stop *atomic.Bool, count *atomic.Uint64) {
	b := new(packet.Batch)
	for !stop.Load() {
		b.Reset()
		if n := rx.Recv(b); n > 0 {
			count.Add(uint64(n))
		}
		rx.Release()
	}
}

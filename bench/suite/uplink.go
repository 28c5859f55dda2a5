package main

import (
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

func uplinkFamily() []*experiment {
	var list []*experiment
	for _, size := range []int{64, 1500} {
		for _, way := range []string{"send", "receive"} {
			list = append(list, &experiment{name: fmt.Sprintf("uplink-%s/%d", way, size), unit: "frames/s", peers: []string{weftPeer, testpmdPeer},
				do: func(r *run, peer string) (float64, error) { return measureUplink(r, peer, way, size, 0) }})
		}
	}
	// The kernel serving the device in the worker's system calls.
	list = append(list, &experiment{name: "uplink-receive-busypoll/64", unit: "frames/s", peers: []string{weftPeer, testpmdPeer},
		do: func(r *run, peer string) (float64, error) { return measureUplink(r, peer, "receive", 64, 50) }})
	return list
}

// measureUplink is one of them; busyPoll in µs is Weft's setting, 0: none.
func measureUplink(r *run, peer, way string, size, busyPoll int) (float64, error) {
	w, err := newSite(r)
	if err != nil {
		return 0, err
	}
	if way == "receive" {
		w.detach() // the generator brings a program of its own
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

// testpmdUplink is a testpmd on one AF_XDP queue: of the uplink, on switchCore,
// or of its far end, on guestCore. Its frames are VXLAN to the site's host, by
// their addresses.
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

// weftUplink has this program itself, in the uplink's namespace, do what a
// worker does with an uplink's queues.
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

// driveVerb is the argument with which this program is the uplink's worker.
const driveVerb = "drive-uplink"

func driveUplink(args []string) error {
	flags := flag.NewFlagSet(driveVerb, flag.ContinueOnError)
	dev := flags.String("dev", "", "device")
	way := flags.String("way", "", "send or receive")
	size := flags.Int("size", 64, "bytes of a frame")
	local := flags.String("local", "", "address of the tunnel endpoint")
	length := flags.Duration("length", time.Second, "of a measurement of receiving")
	busyPoll := flags.Int("busy-poll", 0, "µs of busy polling, 0: none")
	if err := flags.Parse(args); err != nil {
		return err
	}
	uplink, err := xsk.Setup(xsk.Config{Dev: *dev, Queues: 1, BusyPoll: *busyPoll})
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
		time.Sleep(warmUp)
		before, from := count.Load(), time.Now()
		time.Sleep(*length)
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

// emptyPauses is how long a worker pauses after a pass that found nothing
// (datapath.emptyPassPauses): whoever fills the ring writes where it looks.
const emptyPauses = 24

func receiveAll(rx port.Rx, stop *atomic.Bool, count *atomic.Uint64) {
	b := new(packet.Batch)
	for !stop.Load() {
		b.Reset()
		n := rx.Recv(b)
		if n > 0 {
			count.Add(uint64(n))
		}
		rx.Release()
		if n == 0 {
			cpu.Pause(emptyPauses)
		}
	}
}

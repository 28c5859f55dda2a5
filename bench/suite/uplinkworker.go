// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"net/netip"
	"os"
	"os/signal"
	"sync/atomic"
	"syscall"
	"time"

	"weft/e2e/lab"
	"weft/internal/cpu"
	"weft/packet"
	"weft/port"
	"weft/xsk"
)

// driveVerb is the argument with which this program runs a worker on an uplink.
const driveVerb = "drive-uplink"

// driveSpec is the task of a worker on an uplink.
type driveSpec struct {
	Dev      string
	Local    netip.Addr    // address of the tunnel endpoint
	Send     bool          // false: it receives
	Size     int           // length of a frame in bytes
	Length   time.Duration // of a measurement of receiving
	BusyPoll int           // time of busy polling in µs; 0: none
}

func driveUplink(args []string) {
	var spec driveSpec
	readTask(args, &spec)
	uplink := lab.Must(xsk.Setup(xsk.Config{Dev: spec.Dev, Queues: 1, BusyPoll: spec.BusyPoll}))
	defer uplink.Close()
	lab.Check(uplink.SetEndpoints([]netip.AddrPort{netip.AddrPortFrom(spec.Local, 4789)}))
	queues := lab.Must(uplink.Spec())
	var fds []int
	for _, fd := range uplink.FDs() {
		fds = append(fds, lab.Must(syscall.Dup(fd)))
	}
	device := lab.Must(xsk.Open(queues, fds))
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
		if spec.Send {
			sendAll(device.Tx()[0], spec.Size, &stop)
		} else {
			receiveAll(device.Rx()[0], &stop, &count)
		}
		done <- nil
	}()
	if !spec.Send {
		time.Sleep(warmUp)
		before, from := count.Load(), time.Now()
		time.Sleep(spec.Length)
		fmt.Printf("frames a second: %.0f\n", float64(count.Load()-before)/time.Since(from).Seconds())
	} else {
		select {
		case <-stopped:
		case err := <-done:
			lab.Check(err)
			return
		}
	}
	stop.Store(true)
	lab.Check(<-done)
}

// sendAll sends batches of equal frames until stop is set. It copies only the first bytes of each
// frame into the batch.
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

// emptyPauses is the number of CPU pauses after a poll without a frame, the same as
// datapath.emptyPassPauses. Without pauses, the polls would slow the sender down.
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

// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"

	"weft/e2e/lab"
	"weft/internal/cpu"
)

// hopsVerb is the argument with which this program sends UDP datagrams.
const hopsVerb = "send-datagrams"

// sendSpec is the task of a process that sends datagrams.
type sendSpec struct {
	Core, Count int           // core to run on, number of datagrams
	Port        int           // destination port; with New, that of the first datagram
	New         bool          // each datagram has a port of its own, so that each is a new connection
	Pause       time.Duration // between two datagrams
}

func sendDatagrams(args []string) {
	var spec sendSpec
	readTask(args, &spec)
	lab.Check(cpu.Pin(spec.Core))
	fd := lab.Must(unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0))
	to := &unix.SockaddrInet4{Addr: netip.MustParseAddr(hopsPeerIP).As4(), Port: spec.Port}
	payload := make([]byte, hopsSize)
	start := time.Now()
	for i := range spec.Count {
		if spec.New {
			to.Port = spec.Port + i
		}
		lab.Check(unix.Sendto(fd, payload, 0, to))
		if spec.Pause > 0 {
			time.Sleep(spec.Pause)
		}
	}
	fmt.Printf("ns a datagram: %.1f\n", float64(time.Since(start).Nanoseconds())/float64(spec.Count))
}

// SPDX-License-Identifier: Apache-2.0

package main

import (
	"flag"
	"fmt"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"

	"weft/e2e/lab"
	"weft/internal/cpu"
)

// hopsVerb is the argument with which this program sends UDP datagrams.
const hopsVerb = "send-datagrams"

func sendDatagrams(args []string) {
	flags := flag.NewFlagSet(hopsVerb, flag.ContinueOnError)
	core := flags.Int("core", guestCore, "core to run on")
	count := flags.Int("count", 1, "datagrams")
	port := flags.Int("port", 10_000, "their destination's port, the first of them with -new")
	fresh := flags.Bool("new", false, "each to a port of its own, so that each is a new connection")
	pause := flags.Duration("pause", 0, "between two")
	lab.Check(flags.Parse(args))
	lab.Check(cpu.Pin(*core))
	fd := lab.Must(unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0))
	to := &unix.SockaddrInet4{Addr: netip.MustParseAddr(hopsPeerIP).As4(), Port: *port}
	payload := make([]byte, hopsSize)
	start := time.Now()
	for i := range *count {
		if *fresh {
			to.Port = *port + i
		}
		lab.Check(unix.Sendto(fd, payload, 0, to))
		if *pause > 0 {
			time.Sleep(*pause)
		}
	}
	fmt.Printf("ns a datagram: %.1f\n", float64(time.Since(start).Nanoseconds())/float64(*count))
}

// SPDX-License-Identifier: Apache-2.0

package main

import (
	"flag"
	"fmt"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"

	"weft/internal/cpu"
)

// hopsVerb is the argument with which this program sends UDP datagrams.
const hopsVerb = "send-datagrams"

func sendDatagrams(args []string) error {
	flags := flag.NewFlagSet(hopsVerb, flag.ContinueOnError)
	core := flags.Int("core", guestCore, "core to run on")
	count := flags.Int("count", 1, "datagrams")
	port := flags.Int("port", 10_000, "their destination's port, the first of them with -new")
	fresh := flags.Bool("new", false, "each to a port of its own, so that each is a new connection")
	pause := flags.Duration("pause", 0, "between two")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if err := cpu.Pin(*core); err != nil {
		return err
	}
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	to := &unix.SockaddrInet4{Addr: netip.MustParseAddr(hopsPeerIP).As4(), Port: *port}
	payload := make([]byte, hopsSize)
	start := time.Now()
	for i := range *count {
		if *fresh {
			to.Port = *port + i
		}
		if err := unix.Sendto(fd, payload, 0, to); err != nil {
			return err
		}
		if *pause > 0 {
			time.Sleep(*pause)
		}
	}
	fmt.Printf("ns a datagram: %.1f\n", float64(time.Since(start).Nanoseconds())/float64(*count))
	return nil
}

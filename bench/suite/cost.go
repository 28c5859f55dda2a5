// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"os"
	"regexp"
	"strconv"
	"time"

	"weft/e2e/lab"
)

// costOf returns how many seconds the switch's core needs for a frame. It measures for half of d.
func costOf(sw vswitch, d time.Duration) float64 {
	switch sw := sw.(type) {
	case *weft:
		before := sw.worker()
		time.Sleep(d / 2)
		after := sw.worker()
		if after.Frames == before.Frames {
			lab.Check(errors.New("no frames came"))
		}
		return float64(after.BusyNS-before.BusyNS) / 1e9 / float64(after.Frames-before.Frames)
	case *ovs:
		sw.appctl("dpif-netdev/pmd-stats-clear")
		time.Sleep(d / 2)
		text := sw.appctl("dpif-netdev/pmd-stats-show")
		m := regexp.MustCompile(`avg processing cycles per packet: ([0-9.]+)`).FindStringSubmatch(text)
		if m == nil {
			lab.Check(fmt.Errorf("pmd-stats-show says %q", text))
		}
		return lab.Must(strconv.ParseFloat(m[1], 64)) / tscHz()
	}
	panic(fmt.Sprintf("%T does not measure its time for a frame", sw))
}

// tscHz returns the frequency of the CPU's time stamp counter. It is half of the BogoMIPS value in
// /proc/cpuinfo.
func tscHz() float64 {
	text, _ := os.ReadFile("/proc/cpuinfo")
	m := regexp.MustCompile(`bogomips\s*: ([0-9.]+)`).FindStringSubmatch(string(text))
	if m == nil {
		return 1e9
	}
	mips, _ := strconv.ParseFloat(m[1], 64)
	return mips / 2 * 1e6
}

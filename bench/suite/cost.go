// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"os"
	"regexp"
	"strconv"
	"time"
)

// costOf returns how many seconds the switch's core needs for a frame. It measures for half of d.
func costOf(sw vswitch, d time.Duration) (float64, error) {
	switch sw := sw.(type) {
	case *weft:
		before, err := sw.worker()
		if err != nil {
			return 0, err
		}
		time.Sleep(d / 2)
		after, err := sw.worker()
		if err != nil || after.Frames == before.Frames {
			return 0, errors.Join(err, errors.New("no frames came"))
		}
		return float64(after.BusyNS-before.BusyNS) / 1e9 / float64(after.Frames-before.Frames), nil
	case *ovs:
		if _, err := sw.appctl("dpif-netdev/pmd-stats-clear"); err != nil {
			return 0, err
		}
		time.Sleep(d / 2)
		text, err := sw.appctl("dpif-netdev/pmd-stats-show")
		if err != nil {
			return 0, err
		}
		m := regexp.MustCompile(`avg processing cycles per packet: ([0-9.]+)`).FindStringSubmatch(text)
		if m == nil {
			return 0, fmt.Errorf("pmd-stats-show says %q", text)
		}
		cycles, err := strconv.ParseFloat(m[1], 64)
		return cycles / tscHz(), err
	}
	return 0, fmt.Errorf("%T does not measure its time for a frame", sw)
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

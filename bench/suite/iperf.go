// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/prometheus/procfs"

	"weft/e2e/lab"
)

// iperfReport has the fields of iperf3's JSON report that the suite uses.
type iperfReport struct {
	Error string
	End   struct {
		Received struct {
			BitsPerSecond float64 `json:"bits_per_second"`
			Bytes         float64
		} `json:"sum_received"`
		Sum struct { // for UDP
			BitsPerSecond float64 `json:"bits_per_second"`
			Bytes         float64
			LostPercent   float64 `json:"lost_percent"`
		}
	}
}

func readIperf(text string) *iperfReport {
	report := new(iperfReport)
	if err := json.Unmarshal([]byte(text), report); err != nil {
		lab.Check(fmt.Errorf("iperf3: %w: %s", err, strings.TrimSpace(text)))
	}
	if report.Error != "" {
		lab.Check(errors.New("iperf3: " + report.Error))
	}
	return report
}

// iperf returns the bits per second that guest 1 receives from guest 0. It also notes the machine's
// CPU time per gigabyte, which includes polls without frames.
func (o *overlayRig) iperf(args ...string) float64 {
	o.start("iperf-server", netnsCommand(o.guest(1), "iperf3", "-s", "-1")...)
	var report *iperfReport
	var busy float64
	seconds := max(1, int(o.length.Seconds()))
	limit := fmt.Sprint(seconds + 10) // a broken path must not delay the other experiments
	client := netnsCommand(o.guest(0), append([]string{"timeout", limit, "iperf3", "-c", overlayAddress(1), "-J", "-t", fmt.Sprint(seconds)}, args...)...)
	eventually(5*time.Second, func() {
		before := busySeconds(allCores)
		out := lab.Must(command(nil, client[0], client[1:]...))
		busy = busySeconds(allCores) - before
		report = readIperf(out)
	})
	bits, bytes := report.End.Received.BitsPerSecond, report.End.Received.Bytes
	if sum := report.End.Sum; sum.Bytes > 0 { // UDP
		bits, bytes = sum.BitsPerSecond*(1-sum.LostPercent/100), sum.Bytes*(1-sum.LostPercent/100)
		o.note("lost", "%", sum.LostPercent)
	}
	if bytes == 0 {
		lab.Check(errors.New("iperf3: nothing arrived"))
	}
	o.note("cpu", "s/GB", busy/(bytes/1e9))
	return bits
}

// allCores makes busySeconds return the time of all cores.
const allCores = -1

// busySeconds returns how many seconds a core, or all cores together, were busy since the machine's
// start.
func busySeconds(core int) float64 {
	fs, _ := procfs.NewDefaultFS() // an error here means that Stat returns one, too
	stat, _ := fs.Stat()
	c := stat.CPU[int64(core)]
	if core == allCores {
		c = stat.CPUTotal
	}
	return c.User + c.Nice + c.System + c.IRQ + c.SoftIRQ
}

// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"time"

	"github.com/prometheus/procfs"
)

// userHZ is the number of clock ticks a second in /proc (proc(5)).
const userHZ = 100

// CPUTime returns the CPU time of a process in user and kernel mode, in steps of 10 ms. It is 0
// after the end of the process.
func CPUTime(pid int) (user, system time.Duration) {
	p, _ := procfs.NewProc(pid) // after an error, Stat fails, too
	stat, err := p.Stat()
	if err != nil {
		return 0, 0
	}
	return time.Duration(stat.UTime) * time.Second / userHZ, time.Duration(stat.STime) * time.Second / userHZ
}

// Status returns the fields of /proc/PID/status, with sizes in bytes. They are 0 after the end of the
// process.
func Status(pid int) procfs.ProcStatus {
	p, _ := procfs.NewProc(pid) // after an error, NewStatus fails, too
	status, _ := p.NewStatus()
	return status
}

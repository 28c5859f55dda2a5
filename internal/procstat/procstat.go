// SPDX-License-Identifier: Apache-2.0

// Package procstat reads the state of a thread from /proc.
package procstat

import (
	"bytes"
	"fmt"
	"strconv"
)

// Thread has the state of one thread, from proc_pid_stat(5).
type Thread struct {
	// State is R (runs or waits for a core), S or D (blocked in the kernel; only a signal wakes S),
	// t or T (stopped), Z or X (ended).
	State byte
	// Ending is true once the thread exits, because it was killed or because its process exits. It no
	// longer runs code of the program then.
	Ending bool
}

// Flags of a thread, from include/linux/sched.h. They are field 9 in proc_pid_stat(5).
const (
	flagExiting  = 0x4   // PF_EXITING
	flagSignaled = 0x400 // PF_SIGNALED: killed by a signal
)

// Ended reports whether the thread has ended and has closed its files. It may still exist as a zombie.
func (t Thread) Ended() bool { return t.State == 'Z' || t.State == 'X' }

// Parse parses the text of the file /proc/PID/task/TID/stat.
func Parse(text []byte) (Thread, error) {
	// the name of the thread, in parentheses, may contain any bytes
	fields := bytes.Fields(text[bytes.LastIndexByte(text, ')')+1:])
	if len(fields) < 7 {
		return Thread{}, fmt.Errorf("%q: expected at least 9 fields", text)
	}
	flags, err := strconv.ParseUint(string(fields[6]), 10, 64)
	if err != nil {
		return Thread{}, err
	}
	return Thread{State: fields[0][0], Ending: flags&(flagExiting|flagSignaled) != 0}, nil
}

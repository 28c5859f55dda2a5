// SPDX-License-Identifier: Apache-2.0

//go:build race

package sandbox

// detector has the system calls of the race detector and of the C library, which starts
// threads in a binary with the race detector.
var detector = []string{"clone3", "mprotect", "rseq", "set_robust_list", "sched_getscheduler", "sched_getparam"}

// SPDX-License-Identifier: Apache-2.0

// Package sandbox takes privileges away from the calling process. The engine process reads memory that
// guests write, so a fault of the engine may give a guest control of this process. The process keeps the
// memory and descriptors of the ports. It can reach no other process, file or network of the host.
package sandbox

import (
	"fmt"

	"github.com/elastic/go-seccomp-bpf"
	"github.com/landlock-lsm/go-landlock/landlock"
	"kernel.org/pub/linux/libs/security/libcap/cap"
)

// Enter takes privileges away from all threads of this process, for good:
//
//   - every capability, and the ability to gain one (no_new_privs);
//   - every file that is not open yet, if the kernel has Landlock (Linux 5.13);
//   - signals to other processes, if the kernel's Landlock can deny them (Linux 6.12);
//   - every system call that is not in the list in calls.go, by seccomp. A refused
//     call returns EPERM, and the kernel's audit log names the call.
//
// The caller opens all files that it needs before Enter. It must have no goroutine that never yields,
// because Enter waits for all threads. Enter fails if the kernel has no seccomp filters.
func Enter() error {
	if err := dropCapabilities(); err != nil {
		return fmt.Errorf("capabilities: %w", err)
	}
	if err := restrictFiles(); err != nil {
		return fmt.Errorf("landlock: %w", err)
	}
	if err := filterCalls(); err != nil {
		return fmt.Errorf("seccomp: %w", err)
	}
	return nil
}

// dropCapabilities empties the capability sets of all threads, and the bounding set if it may.
func dropCapabilities() error {
	if own, _ := cap.GetProc().GetFlag(cap.Effective, cap.SETPCAP); own {
		for c := cap.Value(0); c < cap.MaxBits(); c++ {
			if err := cap.DropBound(c); err != nil {
				return fmt.Errorf("bounding set: %w", err)
			}
		}
	} // without CAP_SETPCAP the bounding set stays, but no_new_privs makes it useless
	return cap.NewSet().SetProc()
}

// restrictFiles denies the process everything that the kernel's Landlock can deny. Without Landlock it
// does nothing: the filter of system calls refuses to open files, too.
func restrictFiles() error { return landlock.V11.BestEffort().Restrict() }

func filterCalls() error {
	policy, err := policy()
	if err != nil {
		return err
	}
	return seccomp.LoadFilter(seccomp.Filter{
		NoNewPrivs: true, Flag: seccomp.FilterFlagTSync | seccomp.FilterFlagLog, Policy: policy,
	})
}

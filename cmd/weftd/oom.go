// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"strconv"
	"strings"
)

// This file decides which process the kernel's OOM killer ends when memory is short. The systemd unit
// of the package protects weftd with OOMScoreAdjust=. Without it, the kernel would choose the engine
// first, because the engine maps the memory of all guests.
//
// The control process gives up this protection: its peers can make it grow, and its death interrupts no
// traffic. So a control process that has grown dies before smaller guests, and the engine dies last.

const (
	scoreFile = "/proc/self/oom_score_adj"
	// scoreVariable is an environment variable for the engines that the control process starts. It has
	// the OOM score adjustment of the systemd unit.
	scoreVariable = "WEFT_OOM_SCORE_ADJ"
)

// giveUpProtection raises the OOM score adjustment of the control process, in which it runs, to 0 if it
// is lower. file is the path of the process's oom_score_adj.
func giveUpProtection(file string) error {
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	score, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil || score >= 0 {
		return err
	}
	if err := os.WriteFile(file, []byte("0"), 0); err != nil {
		return err
	}
	return os.Setenv(scoreVariable, strconv.Itoa(score))
}

// takeProtection sets the OOM score adjustment of the engine, in which it runs, to that of the systemd
// unit. The kernel remembers the value that a process with CAP_SYS_RESOURCE has set last, here systemd.
// Every process may return to this value.
func takeProtection(file string) error {
	score := os.Getenv(scoreVariable)
	if score == "" {
		return nil
	}
	return os.WriteFile(file, []byte(score), 0)
}

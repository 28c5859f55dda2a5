// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"strconv"
	"strings"
)

// This file decides whom the kernel kills when memory is short. The packaged unit protects weftd
// with OOMScoreAdjust=. Without it, the kernel would choose the engine first, because it maps the
// memory of all guests. Control does without the protection: its peers can make it grow, and its
// death interrupts nobody. So a control process that has grown dies before smaller guests, and
// the engine dies last.

const (
	scoreFile = "/proc/self/oom_score_adj"
	// scoreVariable is the environment variable in which control passes the unit's score to the engines
	// that it starts.
	scoreVariable = "WEFT_OOM_SCORE_ADJ"
)

// giveUpProtection raises the score of this process, a control process, to 0 if it is lower. file is the
// path of the process's oom_score_adj.
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

// takeProtection gives this process, an engine, the score of the unit. The kernel remembers the score
// that a process with CAP_SYS_RESOURCE, here systemd, has set last. Every process may return to it.
func takeProtection(file string) error {
	score := os.Getenv(scoreVariable)
	if score == "" {
		return nil
	}
	return os.WriteFile(file, []byte(score), 0)
}

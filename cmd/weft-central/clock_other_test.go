// SPDX-License-Identifier: Apache-2.0

//go:build !amd64

package main

import (
	"os/exec"
	"time"
)

// realtimeClock does not shift the clock on this architecture. See clock_amd64_test.go.
type realtimeClock struct{}

func startShifted(cmd *exec.Cmd) (*realtimeClock, error) { return &realtimeClock{}, cmd.Start() }

func (*realtimeClock) set(time.Duration) {}
func (*realtimeClock) close()            {}

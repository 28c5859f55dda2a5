// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"
)

// printTimeEnv is an environment variable. If it is set, this test's program prints the
// time for each line that it reads.
const printTimeEnv = "WEFT_TEST_PRINT_TIME"

func printTime() {
	start := time.Now()
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		fmt.Println(time.Now().Unix(), time.Since(start) < time.Hour)
	}
}

// The clock of a process can be set ahead and back. The process's monotonic clock does
// not change.
func TestShiftedClock(t *testing.T) {
	if runtime.GOARCH != "amd64" {
		t.Skip("clocks are shifted on amd64 only")
	}
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), printTimeEnv+"=1")
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	runtime.LockOSThread()
	clock, err := startShifted(cmd)
	runtime.UnlockOSThread()
	if err != nil {
		t.Fatal(err)
	}
	defer clock.close()
	answers := bufio.NewScanner(out)
	for _, shift := range []time.Duration{0, 40 * 24 * time.Hour, -time.Hour, 0} {
		clock.set(shift)
		fmt.Fprintln(in)
		answers.Scan()
		at, monotonic, _ := strings.Cut(answers.Text(), " ")
		n, err := strconv.ParseInt(at, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		if d := time.Unix(n, 0).Sub(time.Now().Add(shift)).Abs(); d > time.Minute || monotonic != "true" {
			t.Errorf("shifted by %s: the clock is %s off, monotonic %s", shift, d, monotonic)
		}
	}
	_ = in.Close()
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
}

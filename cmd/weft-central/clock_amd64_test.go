// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"bytes"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"
)

// realtimeClock shifts the clock CLOCK_REALTIME of one process. Go reads this clock
// by the function __vdso_clock_gettime, which the kernel maps into each process. The
// process's own copy of this function is replaced before its first instruction runs.
// CLOCK_MONOTONIC stays as it is, as on a machine whose clock is set.
//
// A time namespace does not help, because it shifts only CLOCK_MONOTONIC and
// CLOCK_BOOTTIME.
type realtimeClock struct {
	memory *os.File // of the process
	shift  int64    // address of the shift (in seconds) in the process's memory
}

// shiftedGettime is the code that replaces __vdso_clock_gettime. It calls the kernel,
// and adds the shift to the seconds if the clock is CLOCK_REALTIME. The shift is stored
// after the code.
var shiftedGettime = []byte{
	0xb8, 0xe4, 0x00, 0x00, 0x00, // mov $228, %eax (clock_gettime)
	0x0f, 0x05, // syscall
	0x85, 0xff, // test %edi, %edi
	0x75, 0x0a, // jne to ret
	0x48, 0x8b, 0x0d, 0x06, 0x00, 0x00, 0x00, // mov shift(%rip), %rcx
	0x48, 0x01, 0x0e, // add %rcx, (%rsi)
	0xc3,       // ret
	0xcc, 0xcc, // up to a multiple of 8
}

// startShifted starts a process whose clock the method set can shift. The calling
// goroutine must be locked to its thread, because only the thread that traces a process
// may release it.
func startShifted(cmd *exec.Cmd) (*realtimeClock, error) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Ptrace: true}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	pid := cmd.Process.Pid
	var status syscall.WaitStatus
	if _, err := syscall.Wait4(pid, &status, 0, nil); err != nil || !status.Stopped() {
		return nil, errors.Join(err, fmt.Errorf("the process does not stop at its start: %x", status))
	}
	clock, err := replaceGettime(pid)
	return clock, errors.Join(err, syscall.PtraceDetach(pid))
}

func replaceGettime(pid int) (*realtimeClock, error) {
	maps, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", pid))
	if err != nil {
		return nil, err
	}
	var from, to int64
	for lines := bufio.NewScanner(bytes.NewReader(maps)); lines.Scan(); {
		if strings.HasSuffix(lines.Text(), "[vdso]") {
			if _, err := fmt.Sscanf(lines.Text(), "%x-%x", &from, &to); err != nil {
				return nil, err
			}
		}
	}
	memory, err := os.OpenFile(fmt.Sprintf("/proc/%d/mem", pid), os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	vdso, err := elf.NewFile(io.NewSectionReader(memory, from, to-from))
	if err != nil {
		return nil, fmt.Errorf("the vdso of %d bytes: %w", to-from, err)
	}
	symbols, err := vdso.DynamicSymbols()
	if err != nil {
		return nil, err
	}
	for _, s := range symbols {
		if s.Name != "__vdso_clock_gettime" {
			continue
		}
		at := from + int64(s.Value)
		_, err := memory.WriteAt(append(shiftedGettime, make([]byte, 8)...), at)
		return &realtimeClock{memory, at + int64(len(shiftedGettime))}, err
	}
	return nil, errors.New("the vdso has no __vdso_clock_gettime")
}

// set sets the shift of the process's clock. It does nothing if the process has ended.
func (c *realtimeClock) set(shift time.Duration) {
	_, _ = c.memory.WriteAt(binary.LittleEndian.AppendUint64(nil, uint64(int64(shift/time.Second))), c.shift)
}

func (c *realtimeClock) close() { _ = c.memory.Close() }

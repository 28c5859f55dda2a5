// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"os/exec"
	"runtime"
	"sync"
	"syscall"
)

// starter returns a channel of functions, which one permanent thread calls. This thread starts
// all processes, because a process with PR_SET_PDEATHSIG (prctl(2)) dies with the thread that
// started it, and other threads of a Go program may end.
var starter = sync.OnceValue(func() chan func() {
	work := make(chan func())
	go func() {
		runtime.LockOSThread()
		for f := range work {
			f()
		}
	}()
	return work
})

// StartWithParent starts a process that the kernel kills when this process ends. It keeps other
// settings of cmd.SysProcAttr.
func StartWithParent(cmd *exec.Cmd) error {
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL
	done := make(chan error)
	starter() <- func() { done <- cmd.Start() }
	return <-done
}

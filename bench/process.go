// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"os/exec"
	"runtime"
	"sync"
	"syscall"
)

// starter returns a channel. One permanent thread calls the functions that are sent to
// the channel. This thread starts processes, because a process dies with the thread
// that started it (PR_SET_PDEATHSIG, prctl(2)), and other threads of a Go program may
// end.
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

// StartWithParent starts a process that ends at the latest with this one. It keeps
// other settings of cmd.SysProcAttr.
func StartWithParent(cmd *exec.Cmd) error {
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL
	done := make(chan error)
	starter() <- func() { done <- cmd.Start() }
	return <-done
}

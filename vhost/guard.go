// SPDX-License-Identifier: Apache-2.0

package vhost

import (
	"fmt"
	"runtime"
	"runtime/debug"
)

// recoverFault turns a fault on guest memory that is gone into an error; without it
// the process would end. Callers that touch guest memory write `defer
// recoverFault(&err)()`. Workers do not use it: they guard a whole pass.
func recoverFault(err *error) func() {
	old := debug.SetPanicOnFault(true)
	return func() {
		debug.SetPanicOnFault(old)
		r := recover()
		if r == nil {
			return
		}
		if fault, ok := r.(runtime.Error); ok {
			*err = fmt.Errorf("guest memory faulted; its file may have been truncated: %w", fault)
			return
		}
		panic(r)
	}
}

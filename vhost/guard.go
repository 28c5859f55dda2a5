// SPDX-License-Identifier: Apache-2.0

package vhost

import (
	"fmt"
	"runtime"
	"runtime/debug"
)

// recoverFault turns a fault on truncated guest memory into an error. Functions that access guest memory
// call `defer recoverFault(&err)()`. Workers do not use it: each turn of their loop has a recover of its
// own (package datapath).
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

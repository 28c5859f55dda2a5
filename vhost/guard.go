package vhost

import (
	"fmt"
	"runtime"
	"runtime/debug"
)

// recoverFault makes touching guest memory that is no longer there an error
// instead of the process's end: use it as `defer recoverFault(&err)()` around
// what touches it. Not for workers, which guard a whole pass.
func recoverFault(err *error) func() {
	old := debug.SetPanicOnFault(true)
	return func() {
		debug.SetPanicOnFault(old)
		r := recover()
		if r == nil {
			return
		}
		if fault, ok := r.(runtime.Error); ok {
			*err = fmt.Errorf("guest memory faulted, its file is shorter than it was: %w", fault)
			return
		}
		panic(r)
	}
}

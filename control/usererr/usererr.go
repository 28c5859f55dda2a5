// SPDX-License-Identifier: Apache-2.0

// Package usererr makes the errors that operators and clients of the API read. Each
// error is one line that names the wrong word and what was expected. The package has
// no state.
package usererr

import (
	"errors"
	"fmt"
	"os"
)

// Error reports wrong input of a client. The request has changed nothing.
type Error struct{ message string }

func (e *Error) Error() string { return e.message }

// Errorf makes an Error; the arguments are as in fmt.Sprintf.
func Errorf(format string, args ...any) error {
	return &Error{message: fmt.Sprintf(format, args...)}
}

// Mark turns a parser's error about the client's input into an Error.
func Mark(err error) error { return &Error{message: err.Error()} }

// Cause strips the path and the operation from an error of package os. Callers use it
// if their own text names both.
func Cause(err error) error {
	var path *os.PathError
	if errors.As(err, &path) {
		return path.Err
	}
	var call *os.SyscallError
	if errors.As(err, &call) {
		return call.Err
	}
	return err
}

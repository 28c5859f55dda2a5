// SPDX-License-Identifier: Apache-2.0

// Package usererr makes errors for operators and API clients: one line that names the
// wrong word and the expected one.
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

// Mark makes a parser's error an Error.
func Mark(err error) error { return &Error{message: err.Error()} }

// Cause strips path and operation from an error of package os.
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

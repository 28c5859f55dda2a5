// SPDX-License-Identifier: Apache-2.0

// Package usererr makes errors for operators and API clients. An error is one line that
// names the wrong word and describes the expected one.
package usererr

import (
	"errors"
	"fmt"
	"os"
)

// Error is an error in the input of a client. The request has changed nothing.
type Error struct{ message string }

func (e *Error) Error() string { return e.message }

// Errorf makes an Error. The arguments are those of fmt.Sprintf.
func Errorf(format string, args ...any) error {
	return &Error{message: fmt.Sprintf(format, args...)}
}

// Mark makes a parser's error an Error.
func Mark(err error) error { return &Error{message: err.Error()} }

// Cause returns the cause of an error of package os, without path and operation.
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

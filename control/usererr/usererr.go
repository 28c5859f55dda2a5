// Package usererr makes the errors that an operator or a client of the API reads:
// one line that names the offending word and what was expected. It has no state.
package usererr

import (
	"errors"
	"fmt"
	"os"
)

// Error is wrong input. Nothing has changed.
type Error struct{ message string }

func (e *Error) Error() string { return e.message }

// Errorf makes an Error; its arguments are those of fmt.Sprintf.
func Errorf(format string, args ...any) error {
	return &Error{message: fmt.Sprintf(format, args...)}
}

// Mark makes an Error of a parser's error about the client's own words.
func Mark(err error) error { return &Error{message: err.Error()} }

// Cause strips the path and the operation from an error of package os where the
// caller's text already names them.
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

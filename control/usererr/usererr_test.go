// SPDX-License-Identifier: Apache-2.0

package usererr

import (
	"errors"
	"fmt"
	"os"
	"syscall"
	"testing"
)

func TestCauseLosesThePathOnly(t *testing.T) {
	_, err := os.Open("/nonexistent/file")
	if got := Cause(err); got != syscall.ENOENT {
		t.Errorf("cause of %v: %v", err, got)
	}
	call := os.NewSyscallError("bind", syscall.EACCES)
	if got := Cause(fmt.Errorf("wrapped: %w", call)); got != syscall.EACCES {
		t.Errorf("cause of %v: %v", call, got)
	}
	if plain := errors.New("plain"); Cause(plain) != plain {
		t.Errorf("cause of a plain error: %v", Cause(plain))
	}
}

func TestErrorsAreRecognised(t *testing.T) {
	for _, err := range []error{Errorf("n=%d: expected 1", 2), Mark(errors.New("n=2: expected 1"))} {
		var input *Error
		if !errors.As(fmt.Errorf("line 3: %w", err), &input) || err.Error() != "n=2: expected 1" {
			t.Errorf("%v is not recognised", err)
		}
	}
}

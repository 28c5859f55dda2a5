// SPDX-License-Identifier: Apache-2.0

// Package declare turns what people write into changes of a fleet's declaration: the
// words KEY=VALUE of a command and declaration files in TOML. It computes what a file
// would change, and writes a declaration as a file. It does not talk to a central.
package declare

import "fmt"

// Error is a mistake in the words or the file. It is one line for the person who wrote
// them. Nothing has changed.
type Error struct{ message string }

func (e *Error) Error() string { return e.message }

func errorf(format string, args ...any) error {
	return &Error{fmt.Sprintf(format, args...)}
}

// SPDX-License-Identifier: Apache-2.0

// Package declare reads networks, hosts and ports as words KEY=VALUE and as declaration
// files in TOML. It computes the changes that make a fleet equal to a file, and writes
// a fleet as a file. It opens no connections.
package declare

import "fmt"

// Error is the one-line error for wrong words or a wrong file.
type Error struct{ message string }

func (e *Error) Error() string { return e.message }

func errorf(format string, args ...any) error {
	return &Error{fmt.Sprintf(format, args...)}
}

// SPDX-License-Identifier: Apache-2.0

// Package declare reads the two forms in which people declare networks, hosts and
// ports: words KEY=VALUE of a command, and declaration files in TOML. It computes the
// changes that a file makes to a fleet, and writes a fleet's declaration as a file.
// It does not connect to centrals.
package declare

import "fmt"

// Error is the error for wrong words or a wrong file. It is one line for the person
// who wrote them. Nothing has changed.
type Error struct{ message string }

func (e *Error) Error() string { return e.message }

func errorf(format string, args ...any) error {
	return &Error{fmt.Sprintf(format, args...)}
}

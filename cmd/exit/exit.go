// SPDX-License-Identifier: Apache-2.0

// Package exit has the exit codes of weft, weftd and weft-central, and the error of a
// wrong command line.
package exit

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"
)

// Exit codes. Scripts rely on them.
const (
	Failed = 1 // exit code: a correct request failed, or no daemon answers
	Input  = 2 // exit code: the request is wrong, and nothing changed
)

// Usage is an error in a flag, an argument or a configuration file. A command that
// returns it ends with the code Input.
type Usage struct{ Message string }

func (e *Usage) Error() string { return e.Message }

// Usagef formats a Usage.
func Usagef(format string, args ...any) error {
	return &Usage{fmt.Sprintf(format, args...)}
}

// OneLine returns the text of err without line breaks, for messages that scripts
// match by line.
func OneLine(err error) string { return strings.Join(strings.Fields(err.Error()), " ") }

// ReportFlags makes root and its commands return a Usage for a wrong flag, and keeps
// cobra from printing errors itself.
func ReportFlags(root *cobra.Command) {
	root.SilenceErrors, root.SilenceUsage = true, true
	root.CompletionOptions.DisableDefaultCmd = true
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return &Usage{err.Error()} })
}

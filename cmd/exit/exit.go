// SPDX-License-Identifier: Apache-2.0

// Package exit has the exit codes of weft, weftd and weft-central, and the error of a
// wrong command line.
package exit

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
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

// Usagef returns a Usage whose text it formats as fmt.Sprintf does.
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
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error { return &Usage{flagMessage(err) + flagHint(cmd, err)} })
}

// maxTypos limits the letters in which a mistyped flag may differ from the flag that flagHint suggests.
// Two exchanged letters count as two.
const maxTypos = 2

// flagHint returns the end of the message about an unknown flag: the most similar flag, or where to find
// the flags. For any other error it returns "".
func flagHint(cmd *cobra.Command, err error) string {
	var unknown *pflag.NotExistError
	if !errors.As(err, &unknown) {
		return ""
	}
	nearest, least := "", maxTypos+1
	cmd.Flags().VisitAll(func(f *pflag.Flag) { // also the flags of cmd's parents
		if n := distance(unknown.GetSpecifiedName(), f.Name); !f.Hidden && n < least {
			nearest, least = f.Name, n
		}
	})
	if nearest != "" {
		return "; expected --" + nearest + ", perhaps"
	}
	return "; " + cmd.CommandPath() + " --help lists them"
}

// distance returns how many letters must be inserted, removed or replaced to make b of a
// (Levenshtein's distance).
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			replaced := diagonal
			if a[i] != b[j] {
				replaced++
			}
			diagonal = row[j+1]
			row[j+1] = min(replaced, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}

// flagMessage returns the message about a wrong flag. If the flag's value is wrong, the message names
// the flag, the value and what is expected.
func flagMessage(err error) string {
	var wrong *pflag.InvalidValueError
	if !errors.As(err, &wrong) {
		return err.Error()
	}
	f := wrong.GetFlag()
	name := "--" + f.Name
	if f.Shorthand != "" {
		name = "-" + f.Shorthand + ", " + name
	}
	expected := ""
	switch kind := f.Value.Type(); {
	case kind == "duration":
		expected = "a time with its unit, as in 500ms or 1m30s"
	case kind == "bool":
		expected = "true or false"
	case strings.HasPrefix(kind, "float"):
		expected = "a number"
	case kind == "uint16":
		expected = "a whole number from 0 to 65535"
	case kind == "uint32":
		expected = "a whole number from 0 to 4294967295"
	case kind == "uint64":
		expected = "a whole number from 0 up"
	case strings.HasPrefix(kind, "int"):
		expected = "a whole number"
	default:
		return fmt.Sprintf("%s: %s: %v", name, wrong.GetValue(), wrong.Unwrap())
	}
	return fmt.Sprintf("%s: %s: expected %s", name, wrong.GetValue(), expected)
}

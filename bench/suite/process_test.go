// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"strings"
	"testing"
)

// The error of a failed command is one line of limited length, whatever the command has printed.
func TestFailuresAreBrief(t *testing.T) {
	_, err := command(nil, "sh", "-c", "echo begin; for i in $(seq 1000); do echo line; done; echo the end; exit 3")
	if err == nil || !strings.HasSuffix(err.Error(), "line the end") || strings.Contains(err.Error(), "\n") || len(err.Error()) > 500 {
		t.Errorf("%v", err)
	}
	if got := oneLine(errors.Join(errors.New("one"), errors.New("two"))); got != "one; two" {
		t.Error(got)
	}
}

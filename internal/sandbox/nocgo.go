// SPDX-License-Identifier: Apache-2.0

//go:build !cgo

package sandbox

import "github.com/elastic/go-seccomp-bpf"

// Both lists are empty, because this binary has no C library.
var (
	libcCalls       []string
	libcConditional []seccomp.NameWithConditions
)

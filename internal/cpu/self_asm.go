// SPDX-License-Identifier: Apache-2.0

//go:build amd64 || arm64

package cpu

// self returns the address of the calling goroutine's struct g in the Go runtime.
func self() uintptr

// SPDX-License-Identifier: Apache-2.0

//go:build amd64 || arm64

package cpu

// self returns the address of the runtime's g of the calling goroutine.
func self() uintptr

// SPDX-License-Identifier: Apache-2.0

//go:build amd64

package cpu

import "unsafe"

//go:noescape
func prefetch(base unsafe.Pointer, size uintptr, numbers *uint32, n int)

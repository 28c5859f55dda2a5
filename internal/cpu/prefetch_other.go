// SPDX-License-Identifier: Apache-2.0

//go:build !amd64

package cpu

import "unsafe"

func prefetch(unsafe.Pointer, uintptr, *uint32, int) {}

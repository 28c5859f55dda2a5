//go:build !amd64

package cpu

import "unsafe"

func prefetch(unsafe.Pointer, uintptr, *uint32, int) {}

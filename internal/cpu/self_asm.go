//go:build amd64 || arm64

package cpu

// self is the address of the runtime's description of the calling goroutine.
func self() uintptr

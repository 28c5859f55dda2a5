//go:build !amd64

package vhost

func prefetchRead(*head, int, uintptr) {}

func prefetchWrite(*head, int, uintptr) {}

func prefetchSpanWrite(uintptr, uintptr) {}

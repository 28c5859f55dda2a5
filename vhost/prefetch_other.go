// SPDX-License-Identifier: Apache-2.0

//go:build !amd64

package vhost

func prefetchRead(*head, int, uintptr, uintptr) {}

func prefetchWrite(*head, int, uintptr, uintptr) {}

func prefetchSpanWrite(uintptr, uintptr) {}

func prefetchSpanRead(uintptr, uintptr) {}

// SPDX-License-Identifier: Apache-2.0

package vhost

import "unsafe"

const _ = -(unsafe.Sizeof(head{}) - 24) // size of a head, as in prefetch_amd64.s

// prefetchRead prefetches the cache line at offset skip of each buffer, and the next
// cache line if the buffer extends into it. delta is the difference between an address
// of this process and the guest address, for one memory region. For a buffer of another
// region the prefetch is wasted. The lines are fetched for writing, because the switch
// writes later frames into the same buffers.
//
//go:noescape
func prefetchRead(heads *head, n int, delta, skip uintptr)

// prefetchWrite prefetches the first two cache lines of each buffer for writing. A line
// that has only the virtio-net header (skip bytes) is fetched for reading (see
// writeHeader). delta is as in prefetchRead.
//
//go:noescape
func prefetchWrite(heads *head, n int, delta, skip uintptr)

//go:noescape
func prefetchSpanWrite(from, to uintptr)

//go:noescape
func prefetchSpanRead(from, to uintptr)

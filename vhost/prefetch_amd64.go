// SPDX-License-Identifier: Apache-2.0

package vhost

import "unsafe"

const _ = -(unsafe.Sizeof(head{}) - 24) // size of a head, as in prefetch_amd64.s

// prefetchRead prefetches two things of each of n buffers: the cache line at offset skip, and the next
// cache line if the buffer extends into it. delta is what must be added to a guest address to get an
// address of this process, in one memory region. The prefetch of a buffer in another region is wasted.
// The lines are fetched for writing, because the switch writes later frames into the same buffers.
//
//go:noescape
func prefetchRead(heads *head, n int, delta, skip uintptr)

// prefetchWrite prefetches the first two cache lines of each of n buffers for writing. A line that has
// only the virtio-net header (skip bytes) is fetched for reading, because writeHeader often leaves it
// alone. delta is the same as for prefetchRead.
//
//go:noescape
func prefetchWrite(heads *head, n int, delta, skip uintptr)

//go:noescape
func prefetchSpanWrite(from, to uintptr)

//go:noescape
func prefetchSpanRead(from, to uintptr)

// SPDX-License-Identifier: Apache-2.0

package vhost

import "unsafe"

const _ = -(unsafe.Sizeof(head{}) - 24) // size of a head, as in prefetch_amd64.s

// prefetchRead prefetches the cache line at offset skip of each buffer, and the next
// line if the buffer reaches it. delta is the difference between this process's
// addresses and guest addresses in one region; for a buffer of another region, the
// prefetch is wasted. The lines are fetched for writing, because the switch writes
// later frames into the same buffers.
//
//go:noescape
func prefetchRead(heads *head, n int, delta, skip uintptr)

// prefetchWrite prefetches the first two cache lines of each buffer for writing. A
// line that holds only the virtio-net header (skip bytes) is fetched for reading (see
// writeHeader).
//
//go:noescape
func prefetchWrite(heads *head, n int, delta, skip uintptr)

//go:noescape
func prefetchSpanWrite(from, to uintptr)

//go:noescape
func prefetchSpanRead(from, to uintptr)

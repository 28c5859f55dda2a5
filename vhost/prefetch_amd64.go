// SPDX-License-Identifier: Apache-2.0

package vhost

import "unsafe"

const _ = -(unsafe.Sizeof(head{}) - 24) // size of a head, as in prefetch_amd64.s

// prefetchRead prefetches two cache lines of each head's buffer: the line of byte
// skip, and the next one if the buffer reaches it. delta is the difference between
// this process's addresses and guest addresses of one region. A prefetch for a buffer
// of another region is useless but does not fault. The prefetch takes the lines from
// the guest's core for writing, although the switch only reads them: drivers use
// buffers again, and the switch later writes frames into them.
//
//go:noescape
func prefetchRead(heads *head, n int, delta, skip uintptr)

// prefetchWrite prefetches the first two cache lines of each head's buffer for
// writing. The lines of all buffers come from the guest's core at the same time
// instead of one after another. If the first skip bytes, the virtio-net header, end
// with a line, that line is prefetched for reading only (see writeHeader).
//
//go:noescape
func prefetchWrite(heads *head, n int, delta, skip uintptr)

// prefetchSpanWrite prefetches the cache lines from address from up to address to,
// for writing.
//
//go:noescape
func prefetchSpanWrite(from, to uintptr)

// prefetchSpanRead prefetches the cache lines from address from up to address to, for
// reading.
//
//go:noescape
func prefetchSpanRead(from, to uintptr)

// SPDX-License-Identifier: Apache-2.0

package vhost

import "unsafe"

const _ = -(unsafe.Sizeof(head{}) - 24) // size of a head, as in prefetch_amd64.s

// prefetchRead prefetches two cache lines of each head's buffer: the line that holds
// byte number skip, and the next line if the buffer reaches it. delta is the
// difference between this process's addresses and guest addresses in one region. A
// prefetch for a buffer of another region is useless but does not fault. The switch
// only reads these lines, but the prefetch fetches them for writing: drivers reuse
// buffers, and the switch later writes frames into the same lines.
//
//go:noescape
func prefetchRead(heads *head, n int, delta, skip uintptr)

// prefetchWrite prefetches the first two cache lines of each head's buffer for
// writing. The lines of all buffers then come from the guest's core in parallel. If
// the virtio-net header, the first skip bytes, ends with its line, that line is
// prefetched only for reading (see writeHeader).
//
//go:noescape
func prefetchWrite(heads *head, n int, delta, skip uintptr)

// prefetchSpanWrite prefetches, for writing, the cache lines between the addresses
// from and to.
//
//go:noescape
func prefetchSpanWrite(from, to uintptr)

// prefetchSpanRead prefetches, for reading, the cache lines between the addresses
// from and to.
//
//go:noescape
func prefetchSpanRead(from, to uintptr)

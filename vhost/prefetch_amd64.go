package vhost

import "unsafe"

const _ = -(unsafe.Sizeof(head{}) - 24) // as in prefetch_amd64.s

// prefetchRead asks for the line of byte skip of each head's buffer, and for the one
// after it if the buffer reaches that far, as if all lay in the region whose guest
// addresses are delta away from ours. Where they do not, nothing is fetched that
// helps, and nothing faults. The lines are taken away from the guest's core, though
// they are only read: drivers use buffers again, and what is then sent into them finds
// its lines here.
//
//go:noescape
func prefetchRead(heads *head, n int, delta, skip uintptr)

// prefetchWrite asks for the first two lines of each head's buffer, to be written:
// they are taken away from the guest's core, all at once instead of one after
// another. Where a line ends with the first skip bytes, the virtio-net header, it is
// only to be read (writeHeader).
//
//go:noescape
func prefetchWrite(heads *head, n int, delta, skip uintptr)

// prefetchSpanWrite asks for the lines from one address up to another, to be
// written.
//
//go:noescape
func prefetchSpanWrite(from, to uintptr)

// prefetchSpanRead asks for the lines from one address up to another, to be read.
//
//go:noescape
func prefetchSpanRead(from, to uintptr)

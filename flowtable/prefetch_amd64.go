package flowtable

import "weft/packet"

// prefetchLines asks for the n entries that lines number from base on, a cache
// line each. It changes nothing but the time that follows: 77 to 57 ns a frame
// at 100,000 flows, 25 to 22 at 10,000, where plain loads gained nothing.
//
//go:noescape
func prefetchLines(base *uint64, lines *[packet.BatchSize]uint32, n int)

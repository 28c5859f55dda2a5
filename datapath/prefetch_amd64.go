package datapath

import "weft/packet"

// prefetchHints asks for the n hints that lines number.
//
//go:noescape
func prefetchHints(base *hints, lines *[packet.BatchSize]uint32, n int)

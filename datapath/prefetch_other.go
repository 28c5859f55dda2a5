//go:build !amd64

package datapath

import "weft/packet"

// prefetchHints does nothing here; what is found is the same.
func prefetchHints(*hints, *[packet.BatchSize]uint32, int) {}

//go:build !amd64

package flowtable

import "weft/packet"

// prefetchLines does nothing here; what is found is the same.
func prefetchLines(*uint64, *[packet.BatchSize]uint32, int) {}

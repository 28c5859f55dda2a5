//go:build !amd64

package conntrack

import "weft/packet"

// Nothing is asked for here; what is found is the same.

func prefetchBuckets(*bucket, *[packet.BatchSize]uint32, int) {}
func prefetchConns(*conn, *[packet.BatchSize]uint32, int)     {}

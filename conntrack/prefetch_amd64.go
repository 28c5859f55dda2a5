package conntrack

import "weft/packet"

// prefetchBuckets asks for the n buckets that lines number.
//
//go:noescape
func prefetchBuckets(base *bucket, lines *[packet.BatchSize]uint32, n int)

// prefetchConns asks for the first line of the n records that lines number.
//
//go:noescape
func prefetchConns(base *conn, lines *[packet.BatchSize]uint32, n int)

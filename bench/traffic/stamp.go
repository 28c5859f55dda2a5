// SPDX-License-Identifier: Apache-2.0

package traffic

import "encoding/binary"

// stamp is the first part of every payload. It has these fields, given with their offset and length in
// bytes:
//
//	0   4   test, which distinguishes the frames of different measurements
//	4   1   stream
//	5   1   kind
//	6   8   sequence number, from 0 in each stream and kind
//	14  8   CLOCK_MONOTONIC in ns when the frame was sent, or when the request was due
type stamp []byte

const stampLen = 22

// Kinds of frames.
const (
	kindHello    = 1 // before the warm-up; not counted
	kindWarmup   = 2
	kindData     = 3
	kindRequest  = 4
	kindResponse = 5
	kindCold     = 6 // request of the warm-up, also answered by kindResponse
)

func (s stamp) test() uint32   { return binary.BigEndian.Uint32(s) }
func (s stamp) stream() int    { return int(s[4]) }
func (s stamp) kind() byte     { return s[5] }
func (s stamp) seq() uint64    { return binary.BigEndian.Uint64(s[6:]) }
func (s stamp) time() int64    { return int64(binary.BigEndian.Uint64(s[14:])) }
func (s stamp) setKind(k byte) { s[5] = k }

func (s stamp) set(test uint32, stream int, kind byte, seq uint64, ns int64) {
	binary.BigEndian.PutUint32(s, test)
	s[4], s[5] = byte(stream), kind
	binary.BigEndian.PutUint64(s[6:], seq)
	binary.BigEndian.PutUint64(s[14:], uint64(ns))
}

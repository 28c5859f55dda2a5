// SPDX-License-Identifier: Apache-2.0

package port

// TakeToken takes a token from a bucket that holds burst tokens and gets one every everyNS. virtualNS is the
// bucket's virtual time: the time at which it is full again. TakeToken returns false if the bucket is empty.
func TakeToken(virtualNS *uint64, nowNS, everyNS, burst uint64) bool {
	next := max(*virtualNS, nowNS) + everyNS
	if next > nowNS+burst*everyNS {
		return false
	}
	*virtualNS = next
	return true
}

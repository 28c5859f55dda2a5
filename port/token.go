// SPDX-License-Identifier: Apache-2.0

package port

// TakeToken takes a token from a bucket that has at most burst tokens and gets a new one every everyNS.
// *virtualNS is the time at which the bucket will be full again. If the bucket has a token, TakeToken
// advances this time by everyNS and returns true.
func TakeToken(virtualNS *uint64, nowNS, everyNS, burst uint64) bool {
	next := max(*virtualNS, nowNS) + everyNS
	if next > nowNS+burst*everyNS {
		return false
	}
	*virtualNS = next
	return true
}

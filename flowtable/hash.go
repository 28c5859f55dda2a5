// SPDX-License-Identifier: Apache-2.0

package flowtable

import "math/bits"

// Hashes of keys use a random seed for each word, so that no sender can choose keys whose hashes
// collide. A hash takes the words in pairs: it XORs both words with their seeds, multiplies them, and
// XORs the halves of the product.

// seeds has one random seed for each key word, and two more for the method finish.
type seeds [KeyWords + 2]uint64

// spread expands one seed to len(s) seeds (splitmix64).
func spread(seed uint64, s []uint64) {
	for i := range s {
		seed += 0x9e3779b97f4a7c15
		z := seed
		z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
		z = (z ^ z>>27) * 0x94d049bb133111eb
		s[i] = z ^ z>>31
	}
}

// fold multiplies a and b and XORs the two halves of the product.
func fold(a, b uint64) uint64 {
	hi, lo := bits.Mul64(a, b)
	return hi ^ lo
}

// finish returns the hash of a key. acc is the XOR of the results of fold for all pairs of words. A
// change of one bit of acc changes about half of the bits of the hash.
func (s *seeds) finish(acc uint64) uint64 { return fold(acc^s[KeyWords], s[KeyWords+1]) }

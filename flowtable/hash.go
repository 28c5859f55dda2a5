package flowtable

import "math/bits"

// Hashes are keyed by random seeds, one a word position, so that nobody outside
// can choose keys that collide: two words at a time are multiplied, each XORed
// with its seed, and both halves of the product kept.

// seeds has one a word, and two for the finish.
type seeds [KeyWords + 2]uint64

// spread makes n seeds of one (splitmix64).
func spread(seed uint64, s []uint64) {
	for i := range s {
		seed += 0x9e3779b97f4a7c15
		z := seed
		z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
		z = (z ^ z>>27) * 0x94d049bb133111eb
		s[i] = z ^ z>>31
	}
}

// fold multiplies and keeps all of the product.
func fold(a, b uint64) uint64 {
	hi, lo := bits.Mul64(a, b)
	return hi ^ lo
}

// finish spreads acc over all bits.
func (s *seeds) finish(acc uint64) uint64 { return fold(acc^s[KeyWords], s[KeyWords+1]) }

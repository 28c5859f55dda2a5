// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"encoding/binary"
	"slices"

	"github.com/cespare/xxhash/v2"
)

// The digest of a network is the XOR of the digests of its places, its view and its
// members, so both ends keep it current with each change. It detects differences by
// accident; it is no protection against a peer that wants a collision.

// Digest returns the place's part of its network's digest.
func (p *Place) Digest() uint64 {
	d := xxhash.New()
	sum(d, []byte(p.GetPort()), p.GetMac(), []byte(p.GetHost()), p.GetEndpoint())
	sum(d, p.GetAddresses()...)
	sumNumber(d, uint64(p.GetGeneration()))
	return d.Sum64()
}

// Digest returns the view's part of its network's digest.
func (v *NetView) Digest() uint64 {
	d := xxhash.New()
	n := v.GetNet()
	sum(d, []byte(n.GetId()))
	flags := uint64(0)
	if n.GetFlood() {
		flags |= 1
	}
	if v.GetAsked() {
		flags |= 2
	}
	sumNumber(d, uint64(n.GetVni()))
	sumNumber(d, uint64(n.GetMtu()))
	sumNumber(d, flags)
	return d.Sum64()
}

// MemberDigest returns the part that an endpoint adds to its network's digest.
func MemberDigest(endpoint []byte) uint64 {
	d := xxhash.New()
	sum(d, []byte("member"), endpoint)
	return d.Sum64()
}

// sum adds words with their lengths, so that no two lists have the same sum.
func sum(d *xxhash.Digest, words ...[]byte) {
	sumNumber(d, uint64(len(words)))
	for _, w := range words {
		sumNumber(d, uint64(len(w)))
		_, _ = d.Write(w) // never fails
	}
}

func sumNumber(d *xxhash.Digest, n uint64) {
	var b [8]byte
	_, _ = d.Write(binary.LittleEndian.AppendUint64(b[:0], n))
}

// Equal reports whether two places are the same.
func (p *Place) Equal(o *Place) bool {
	return p.GetPort() == o.GetPort() && p.GetNet() == o.GetNet() && p.GetHost() == o.GetHost() &&
		p.GetGeneration() == o.GetGeneration() && slices.Equal(p.GetMac(), o.GetMac()) &&
		slices.Equal(p.GetEndpoint(), o.GetEndpoint()) &&
		slices.EqualFunc(p.GetAddresses(), o.GetAddresses(), slices.Equal[[]byte])
}

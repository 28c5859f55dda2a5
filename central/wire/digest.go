// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"encoding/binary"
	"slices"

	"github.com/cespare/xxhash/v2"
	"google.golang.org/protobuf/proto"
)

// This file computes digests of networks. A digest is the XOR of the digests of the network's settings,
// of its ports (Place) and of its hosts' tunnel endpoints (members). So a change of one of them changes
// the digest without the others. A digest detects accidental differences only, not a hostile peer.

// Digest returns the digest of a port's addresses, host, tunnel endpoint, generation and groups.
func (p *Place) Digest() uint64 {
	return PlaceDigest([]byte(p.GetPort()), p.GetMac(), []byte(p.GetHost()), p.GetEndpoint(), p.GetAddresses(), p.GetGeneration(), groupBytes(p.GetGroups()))
}

func groupBytes(ids []string) (list [][]byte) {
	for _, id := range ids {
		list = append(list, []byte(id))
	}
	return list
}

// PlaceDigest returns what Place.Digest returns for a Place with these fields. Without groups, the
// digest is the same as in versions of Weft that had no groups.
func PlaceDigest(port, mac, host, endpoint []byte, addresses [][]byte, generation int64, groups [][]byte) uint64 {
	var d xxhash.Digest
	d.Reset()
	sumNumber(&d, 4)
	for _, word := range [...][]byte{port, mac, host, endpoint} {
		sumWord(&d, word)
	}
	sum(&d, addresses...)
	sumNumber(&d, uint64(generation))
	if len(groups) > 0 {
		sum(&d, groups...)
	}
	return d.Sum64()
}

// Digest returns the digest of a network's settings.
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
	if a := n.GetAddressing(); a != nil { // digests of networks without it are as in earlier versions
		settings, _ := proto.MarshalOptions{Deterministic: true}.Marshal(a) // an error gives a digest that differs
		sum(d, settings)
	}
	return d.Sum64()
}

// MemberDigest returns the digest of the tunnel endpoint of a host that has ports in the network.
func MemberDigest(endpoint []byte) uint64 {
	d := xxhash.New()
	sum(d, []byte("member"), endpoint)
	return d.Sum64()
}

// sum adds byte strings to the digest, each with its length, so that different lists
// have different digests.
func sum(d *xxhash.Digest, words ...[]byte) {
	sumNumber(d, uint64(len(words)))
	for _, w := range words {
		sumWord(d, w)
	}
}

func sumWord(d *xxhash.Digest, word []byte) {
	sumNumber(d, uint64(len(word)))
	_, _ = d.Write(word) // never fails
}

func sumNumber(d *xxhash.Digest, n uint64) {
	var b [8]byte
	_, _ = d.Write(binary.LittleEndian.AppendUint64(b[:0], n))
}

// Equal reports whether two messages have the same contents.
func (p *Place) Equal(o *Place) bool {
	return p.GetPort() == o.GetPort() && p.GetNet() == o.GetNet() && p.GetHost() == o.GetHost() &&
		p.GetGeneration() == o.GetGeneration() && slices.Equal(p.GetMac(), o.GetMac()) &&
		slices.Equal(p.GetEndpoint(), o.GetEndpoint()) &&
		slices.EqualFunc(p.GetAddresses(), o.GetAddresses(), slices.Equal[[]byte]) && slices.Equal(p.GetGroups(), o.GetGroups())
}

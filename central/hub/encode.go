// SPDX-License-Identifier: Apache-2.0

package hub

import (
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"weft/central/wire"
)

// This file encodes wire.Place messages. Each says where frames to the addresses of one port go: to
// which host and tunnel endpoint. A hub may have a million ports, so it encodes these messages from its
// own records. A host that gets its first port in a network needs the Place of every other port there.
// Package proto encodes all other messages. Field numbers are from central/wire/central.proto.
const (
	fieldReset        = 1 // wire.ToHost.reset
	fieldUpdate       = 2 // wire.ToHost.update
	fieldResetPlaces  = 2 // wire.NetReset.places
	fieldUpdatePlaces = 4 // wire.NetUpdate.places
)

// encode encodes a message for the queues of sessions.
func (h *Hub) encode(m *wire.ToHost) rawMessage { return rawOf(marshal(m)) }

func marshal(m proto.Message) []byte {
	b, err := proto.Marshal(m)
	if err != nil {
		// cannot happen: protobuf refuses only strings that are not valid UTF-8, and
		// the store refuses such strings
		panic("hub: " + err.Error())
	}
	return b
}

// encodeUpdate encodes the message u and adds a wire.Place for each of the ports. The field Places of u
// is empty.
func encodeUpdate(u *wire.NetUpdate, ports []*port) rawMessage {
	return withPlaces(fieldUpdate, marshal(u), fieldUpdatePlaces, ports)
}

// encodeReset encodes the message r and adds a wire.Place for each of the ports. The field Places of r
// is empty.
func encodeReset(r *wire.NetReset, ports []*port) rawMessage {
	return withPlaces(fieldReset, marshal(r), fieldResetPlaces, ports)
}

// withPlaces encodes a wire.ToHost whose only field has the number "field". "message" is the encoded
// content of this field. withPlaces appends to it a wire.Place for each of the ports, under the field
// number "places".
func withPlaces(field protowire.Number, message []byte, places protowire.Number, ports []*port) rawMessage {
	size := len(message)
	for _, p := range ports {
		size += protowire.SizeTag(places) + protowire.SizeBytes(p.placeSize())
	}
	whole := protowire.SizeTag(field) + protowire.SizeBytes(size)
	b := make(rawMessage, 0, protowire.SizeTag(fieldMessages)+protowire.SizeBytes(whole))
	b = protowire.AppendVarint(protowire.AppendTag(b, fieldMessages, protowire.BytesType), uint64(whole))
	b = protowire.AppendVarint(protowire.AppendTag(b, field, protowire.BytesType), uint64(size))
	b = append(b, message...)
	for _, p := range ports {
		b = protowire.AppendVarint(protowire.AppendTag(b, places, protowire.BytesType), uint64(p.placeSize()))
		b = p.appendPlace(b)
	}
	return b
}

// place returns a message with the port's addresses, host and tunnel endpoint. The port must be
// declared and bound.
func (p *port) place() *wire.Place {
	return &wire.Place{Port: p.id, Net: p.net.id, Mac: p.declared.GetMac(), Addresses: p.declared.GetAddresses(),
		Host: p.bind.GetHost(), Endpoint: []byte(p.endpoint), Generation: p.generation, Groups: p.declared.GetGroups()}
}

// placeSize returns the number of bytes that appendPlace appends.
func (p *port) placeSize() int {
	size := sizeWord(len(p.id)) + sizeWord(len(p.net.id)) + sizeWord(len(p.declared.GetMac())) +
		sizeWord(len(p.bind.GetHost())) + sizeWord(len(p.endpoint))
	for _, a := range p.declared.GetAddresses() {
		size += 1 + protowire.SizeBytes(len(a)) // an element may be empty
	}
	if p.generation != 0 {
		size += 1 + protowire.SizeVarint(uint64(p.generation))
	}
	for _, g := range p.declared.GetGroups() {
		size += sizeWord(len(g))
	}
	return size
}

// sizeWord returns the encoded length of a string or bytes field of wire.Place with n bytes of content.
// The tag takes one byte. An empty field takes no bytes.
func sizeWord(n int) int {
	if n == 0 {
		return 0
	}
	return 1 + protowire.SizeBytes(n)
}

// appendPlace appends the encoded wire.Place of the port to b.
func (p *port) appendPlace(b []byte) []byte {
	b = appendWord(b, 1, p.id)
	b = appendWord(b, 2, p.net.id)
	b = appendWord(b, 3, p.declared.GetMac())
	for _, a := range p.declared.GetAddresses() {
		b = protowire.AppendBytes(protowire.AppendTag(b, 4, protowire.BytesType), a)
	}
	b = appendWord(b, 5, p.bind.GetHost())
	b = appendWord(b, 6, p.endpoint)
	if p.generation != 0 {
		b = protowire.AppendVarint(protowire.AppendTag(b, 7, protowire.VarintType), uint64(p.generation))
	}
	for _, g := range p.declared.GetGroups() {
		b = appendWord(b, 8, g)
	}
	return b
}

func appendWord[T string | []byte](b []byte, field protowire.Number, word T) []byte {
	if len(word) == 0 {
		return b
	}
	b = protowire.AppendVarint(protowire.AppendTag(b, field, protowire.BytesType), uint64(len(word)))
	return append(b, word...)
}

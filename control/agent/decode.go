// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"bytes"
	"errors"
	"net/netip"
	"unicode/utf8"

	"google.golang.org/grpc/encoding"
	_ "google.golang.org/grpc/encoding/proto" // registers the codec under rawCodec
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"weft/central/wire"
)

// This file decodes places, the locations of ports (wire.Place). The agent decodes them
// itself, without allocating a wire.Place for each, because a new host gets thousands
// of them. Package proto decodes all other messages. Field numbers are from
// central/wire/central.proto.

// rawMessage is an encoded wire.ToHost.
type rawMessage []byte

// rawCodec is a gRPC codec that passes protobuf messages on in encoded form.
type rawCodec struct{ encoding.CodecV2 }

func (c rawCodec) Unmarshal(data mem.BufferSlice, v any) error {
	if raw, ok := v.(*rawMessage); ok {
		*raw = data.Materialize()
		return nil
	}
	return c.CodecV2.Unmarshal(data, v)
}

var errDecode = errors.New("a message that is not valid")

// fields iterates over the fields of an encoded protobuf message.
type fields struct {
	rest   []byte
	number protowire.Number
	bytes  []byte // value of a field with a length; a slice of the message
	value  uint64 // value of a varint
	kind   protowire.Type
	failed bool
}

func (f *fields) next() bool {
	if len(f.rest) == 0 || f.failed {
		return false
	}
	var n, m int
	f.number, f.kind, n = protowire.ConsumeTag(f.rest)
	if n >= 0 {
		switch f.kind {
		case protowire.BytesType:
			f.bytes, m = protowire.ConsumeBytes(f.rest[n:])
		case protowire.VarintType:
			f.value, m = protowire.ConsumeVarint(f.rest[n:])
		default:
			m = protowire.ConsumeFieldValue(f.number, f.kind, f.rest[n:])
		}
	}
	if n < 0 || m < 0 {
		f.failed = true
		return false
	}
	f.rest = f.rest[n+m:]
	return true
}

func (f *fields) isBytes(number protowire.Number) bool {
	return f.number == number && f.kind == protowire.BytesType
}

func (f *fields) err() error {
	if f.failed {
		return errDecode
	}
	return nil
}

// text returns a copy of the present field's value. The value must be UTF-8.
func (f *fields) text() string {
	f.failed = f.failed || !utf8.Valid(f.bytes)
	return string(f.bytes)
}

type portPlace struct {
	port string
	place
}

// netReset is a decoded wire.NetReset.
type netReset struct {
	view    *wire.NetView
	places  []portPlace
	members []netip.Addr
}

// netUpdate is a decoded wire.NetUpdate.
type netUpdate struct {
	net              string
	deleted          bool
	view             *wire.NetView // nil: as before
	places           []portPlace
	removed          []string
	joined, departed []netip.Addr
}

// decoder decodes messages of one hub.
type decoder struct {
	net       string              // id of the network of the last update; most updates name the same one
	places    []portPlace         // places of the update that is decoded
	removed   []string            // removed ports of the update that is decoded
	hosts     map[string]string   // host ids that places share
	ids       []byte              // buffer of the ids of one place
	addresses [][]byte            // IP addresses of the place that is decoded
	groups    [][]byte            // group ids of the place that is decoded
	sets      map[string][]string // lists of group ids that places share, by their concatenation
}

// maxHosts limits the entries of the maps decoder.hosts and decoder.sets. At the limit the map is emptied.
// Later ids then do not share memory with earlier ones.
const maxHosts = 1 << 16

func (d *decoder) reset(data []byte) (r netReset, err error) {
	r.view = new(wire.NetView)
	r.places = make([]portPlace, 0, count(data, 2))
	f := fields{rest: data}
	for f.next() {
		switch {
		case f.isBytes(1):
			err = errors.Join(err, proto.UnmarshalOptions{Merge: true}.Unmarshal(f.bytes, r.view))
		case f.isBytes(2):
			r.places = d.appendPlace(r.places, f.bytes, &f, true)
		case f.isBytes(3):
			r.members = append(r.members, addrOf(f.bytes))
		}
	}
	return r, errors.Join(err, f.err())
}

// update decodes a wire.NetUpdate. The slices in the result are valid until the next call.
func (d *decoder) update(data []byte) (u netUpdate, err error) {
	f := fields{rest: data}
	u.places, u.removed = d.places[:0], d.removed[:0]
	for f.next() {
		switch {
		case f.isBytes(1):
			if string(f.bytes) == d.net {
				u.net = d.net
			} else if u.net = f.text(); !f.failed {
				d.net = u.net
			}
		case f.number == 2 && f.kind == protowire.VarintType:
			u.deleted = f.value != 0
		case f.isBytes(3):
			if u.view == nil {
				u.view = new(wire.NetView)
			}
			err = errors.Join(err, proto.UnmarshalOptions{Merge: true}.Unmarshal(f.bytes, u.view))
		case f.isBytes(4):
			u.places = d.appendPlace(u.places, f.bytes, &f, false)
		case f.isBytes(5):
			u.removed = append(u.removed, f.text())
		case f.isBytes(6):
			u.joined = append(u.joined, addrOf(f.bytes))
		case f.isBytes(7):
			u.departed = append(u.departed, addrOf(f.bytes))
		}
	}
	d.places, d.removed = u.places, u.removed
	if cap(u.places) > keptMost || cap(u.removed) > keptMost {
		d.places, d.removed = nil, nil
	}
	return u, errors.Join(err, f.err())
}

// appendPlace decodes a wire.Place (the location of a port) and appends it to list. If the data is
// invalid, it sets the mark failed of outer, the fields of the enclosing message. If share is true, all
// locations on one host share the string with the host's id. This saves memory in a large network, and
// takes longer than a copy of the id.
func (d *decoder) appendPlace(list []portPlace, data []byte, outer *fields, share bool) []portPlace {
	var port, mac, host, endpoint []byte
	var generation int64
	d.addresses, d.groups = d.addresses[:0], d.groups[:0]
	f := fields{rest: data}
	for f.next() {
		switch {
		case f.isBytes(1):
			port = f.bytes
		case f.isBytes(2):
			f.failed = f.failed || !utf8.Valid(f.bytes)
		case f.isBytes(3):
			mac = f.bytes
		case f.isBytes(4):
			d.addresses = append(d.addresses, f.bytes)
		case f.isBytes(5):
			host = f.bytes
		case f.isBytes(6):
			endpoint = f.bytes
		case f.number == 7 && f.kind == protowire.VarintType:
			generation = int64(f.value)
		case f.isBytes(8):
			f.failed = f.failed || !utf8.Valid(f.bytes)
			d.groups = append(d.groups, f.bytes)
		}
	}
	if f.failed || !utf8.Valid(port) || !utf8.Valid(host) {
		outer.failed = true
		return list
	}
	var portID, hostID string
	if share {
		portID, hostID = string(port), d.host(host)
	} else {
		d.ids = append(append(d.ids[:0], port...), host...)
		both := string(d.ids) // one allocation
		portID, hostID = both[:len(port)], both[len(port):]
	}
	return append(list, portPlace{portID, place{mac: wire.MACNumber(mac), ips: addrsOf(d.addresses), host: hostID,
		endpoint: addrOf(endpoint), generation: generation, groups: d.groupSet(),
		digest: wire.PlaceDigest(port, mac, host, endpoint, d.addresses, generation, d.groups)}})
}

// groupSet returns the group ids of the location that is being decoded. Locations with the same group ids
// share one slice.
func (d *decoder) groupSet() []string {
	if len(d.groups) == 0 {
		return nil
	}
	key := string(bytes.Join(d.groups, []byte{0}))
	if set, ok := d.sets[key]; ok {
		return set
	}
	if d.sets == nil || len(d.sets) >= maxHosts {
		d.sets = map[string][]string{}
	}
	set := make([]string, len(d.groups))
	for i, id := range d.groups {
		set[i] = string(id)
	}
	d.sets[key] = set
	return set
}

func (d *decoder) host(id []byte) string {
	if s, ok := d.hosts[string(id)]; ok {
		return s
	}
	if d.hosts == nil || len(d.hosts) >= maxHosts {
		d.hosts = map[string]string{}
	}
	s := string(id)
	d.hosts[s] = s
	return s
}

func count(data []byte, number protowire.Number) (n int) {
	for f := (fields{rest: data}); f.next(); {
		if f.isBytes(number) {
			n++
		}
	}
	return n
}

// netResetOf converts a message that package proto has decoded.
func netResetOf(m *wire.NetReset) netReset {
	return netReset{view: m.GetView(), places: placesOf(m.GetPlaces()), members: addrsOf(m.GetMembers())}
}

func placesOf(list []*wire.Place) []portPlace {
	places := make([]portPlace, len(list))
	for i, p := range list {
		places[i] = portPlace{p.GetPort(), placeOf(p)}
	}
	return places
}

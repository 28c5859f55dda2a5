// SPDX-License-Identifier: Apache-2.0

package hub

import (
	"testing"

	"google.golang.org/protobuf/proto"

	"weft/central/wire"
)

// Package proto decodes the places that the hub has encoded: all fields of the places,
// and the other fields of the message.
func TestPlacesAreEncoded(t *testing.T) {
	n := &network{id: "n1"}
	ports := []*port{
		{id: "p1", net: n, declared: &wire.Port{Mac: []byte{2, 0, 0, 0, 0, 1}, Addresses: [][]byte{{10, 0, 0, 1}, make([]byte, 16)}},
			bind: &wire.Bind{Host: "h1"}, endpoint: "\xc0\x00\x02\x01", generation: 1 << 40},
		{id: "p2", net: n, declared: &wire.Port{Addresses: [][]byte{{}}}, bind: &wire.Bind{}},
		{net: &network{}},
	}
	var places []*wire.Place
	for _, p := range ports {
		places = append(places, p.place())
		if size := len(p.appendPlace(nil)); size != p.placeSize() || size != proto.Size(p.place()) {
			t.Errorf("port %q: %d bytes, announced %d, by package proto %d", p.id, size, p.placeSize(), proto.Size(p.place()))
		}
	}
	view := &wire.NetView{Net: &wire.Net{Id: "n1", Vni: 5}}
	update := &wire.NetUpdate{Net: "n1", View: view, Removed: []string{"p3"}, Joined: [][]byte{{1}}}
	reset := &wire.NetReset{View: view, Members: [][]byte{{1}, {2}}}
	batch := new(wire.Batch)
	if err := proto.Unmarshal(append(encodeUpdate(update, ports), encodeReset(reset, ports)...), batch); err != nil {
		t.Fatal(err)
	}
	update.Places, reset.Places = places, places
	expected := &wire.Batch{Messages: []*wire.ToHost{{Message: &wire.ToHost_Update{Update: update}}, {Message: &wire.ToHost_Reset_{Reset_: reset}}}}
	if !proto.Equal(batch, expected) {
		t.Errorf("read %v, expected %v", batch, expected)
	}
}

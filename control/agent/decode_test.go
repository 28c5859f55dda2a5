// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"bytes"
	"reflect"
	"slices"
	"testing"

	"google.golang.org/protobuf/proto"

	"weft/central/wire"
)

func somePlaces() []*wire.Place {
	return []*wire.Place{
		{Port: "p1", Net: "n", Mac: []byte{2, 0, 0, 0, 0, 1}, Addresses: [][]byte{{10, 0, 0, 1}, bytes.Repeat([]byte{9}, 16)},
			Host: "h1", Endpoint: []byte{172, 16, 0, 1}, Generation: 7},
		{Port: "p2", Net: "n", Mac: []byte{2, 0, 0, 0, 0, 2}, Host: "h1", Endpoint: []byte{172, 16, 0, 1}, Generation: -1},
	}
}

func someView() *wire.NetView {
	return &wire.NetView{Net: &wire.Net{Id: "n", Name: "net", Vni: 7, Mtu: 1400, Flood: true}, Asked: true}
}

// The agent's own decoder and package proto give the same result for a NetReset.
func FuzzDecodeReset(f *testing.F) {
	seed, err := proto.Marshal(&wire.NetReset{View: someView(), Places: somePlaces(), Members: [][]byte{{1, 2, 3, 4}}})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(seed)
	f.Add(append(seed, 0x0a, 0x02, 0x10, 0x00))       // the view a second time: both are merged
	f.Add([]byte{0x12, 0x03, 0x0a, 0x01, 0xff})       // an id that is not UTF-8
	f.Add([]byte{0x13, 0x0a, 0x01, 'x', 0x14, 0x10})  // a group
	f.Add([]byte{0x12, 0x04, 0x38, 0x01, 0x38, 0x02}) // two generations: the last one counts
	f.Fuzz(func(t *testing.T, data []byte) {
		want := new(wire.NetReset)
		refused := proto.Unmarshal(data, want)
		got, err := new(decoder).reset(data)
		if (err != nil) != (refused != nil) {
			t.Fatalf("error %v, package proto has %v", err, refused)
		}
		if err != nil {
			return
		}
		if len(got.members) != len(want.Members) || !proto.Equal(got.view, viewOf(want.View)) || !samePlaces(got.places, want.Places) {
			t.Errorf("got %+v, expected %v", got, want)
		}
	})
}

func FuzzDecodeUpdate(f *testing.F) {
	seed, err := proto.Marshal(&wire.NetUpdate{Net: "n", Gone: true, View: someView(), Places: somePlaces(),
		Removed: []string{"p3"}, Joined: [][]byte{{1, 2, 3, 4}}, Left: [][]byte{{1, 2, 3, 5}, {}}})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(seed)
	f.Add([]byte{0x2a, 0x01, 0xff})
	f.Add([]byte{0x12, 0x01, 0x01}) // the field deleted, with the wrong wire type: ignored
	f.Fuzz(func(t *testing.T, data []byte) {
		want := new(wire.NetUpdate)
		refused := proto.Unmarshal(data, want)
		got, err := new(decoder).update(data)
		if (err != nil) != (refused != nil) {
			t.Fatalf("error %v, package proto has %v", err, refused)
		}
		if err != nil {
			return
		}
		if got.net != want.Net || got.deleted != want.Gone || (got.view == nil) != (want.View == nil) ||
			want.View != nil && !proto.Equal(got.view, want.View) || !samePlaces(got.places, want.Places) ||
			len(got.removed) != len(want.Removed) || len(got.joined) != len(want.Joined) || len(got.departed) != len(want.Left) {
			t.Errorf("got %+v, expected %v", got, want)
		}
	})
}

func viewOf(v *wire.NetView) *wire.NetView {
	if v == nil {
		return new(wire.NetView)
	}
	return v
}

func samePlaces(got []portPlace, want []*wire.Place) bool {
	expected := placesOf(want)
	if len(got) != len(expected) {
		return false
	}
	for i := range got {
		if !reflect.DeepEqual(got[i], expected[i]) {
			return false
		}
	}
	return true
}

// A decoder that has decoded other messages gives the same result as a new one. It uses its buffers
// again, and keeps nothing of an invalid message.
func TestDecoderKeepsNothing(t *testing.T) {
	encoded := func(u *wire.NetUpdate) []byte {
		data, err := proto.Marshal(u)
		if err != nil {
			t.Fatal(err)
		}
		return data
	}
	wrong := []byte{0x0a, 0x01, 0xff} // an id that is not UTF-8
	d := new(decoder)
	for _, data := range [][]byte{
		encoded(&wire.NetUpdate{Net: "n", Places: somePlaces(), Removed: []string{"p3", "p4"}}), wrong, wrong,
		encoded(&wire.NetUpdate{Net: "n", Removed: []string{"p5"}}), encoded(&wire.NetUpdate{}),
		encoded(&wire.NetUpdate{Net: "m", Places: somePlaces()[:1]}), encoded(&wire.NetUpdate{Net: "n", Places: somePlaces()}),
	} {
		got, err := d.update(data)
		want, refused := new(decoder).update(data)
		if (err != nil) != (refused != nil) {
			t.Errorf("%x: %v, a new decoder has %v", data, err, refused)
		}
		if err == nil && (got.net != want.net || !slices.Equal(got.removed, want.removed) || !slices.EqualFunc(got.places, want.places, func(x, y portPlace) bool { return reflect.DeepEqual(x, y) })) {
			t.Errorf("%x: %+v, a new decoder has %+v", data, got, want)
		}
	}
}

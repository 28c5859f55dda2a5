// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"bytes"
	"log/slog"
	"testing"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"weft/central/wire"
)

// onePort is a switch with the port web.
type onePort struct{}

func (onePort) Apply(*Changes) error { return nil }
func (onePort) Ports() []LocalPort   { return []LocalPort{{Name: "web", Up: true}} }
func (onePort) Trouble() string      { return "" }

// An agent uses the known part of the messages from a hub of a later version. Its state
// file keeps the unknown fields of networks and ports.
func TestHubOfLaterVersion(t *testing.T) {
	later := protowire.AppendString(protowire.AppendTag(nil, 1000, protowire.BytesType), "of a later version")
	net, port, unknown := &wire.Net{Id: "n", Vni: 7}, &wire.Port{Id: "p1", Name: "web", Net: "n", Mac: []byte{2, 0, 0, 0, 0, 1}}, &wire.ToHost{}
	welcome, reset := &wire.Welcome{Host: "h1", Endpoint: []byte{192, 0, 2, 1}}, &wire.NetReset{View: &wire.NetView{Net: net}, Places: somePlaces()}
	for _, m := range []proto.Message{net, port, unknown, welcome, reset, reset.Places[0]} {
		m.ProtoReflect().SetUnknown(later)
	}
	batch := &wire.Batch{Messages: []*wire.ToHost{
		{Message: &wire.ToHost_Welcome{Welcome: welcome}}, unknown, {Message: &wire.ToHost_Reset_{Reset_: reset}},
		{Message: &wire.ToHost_Port{Port: &wire.PortUpdate{Ports: []*wire.LocalPort{{Port: port}}}}},
		{Message: &wire.ToHost_Revision{Revision: &wire.Revision{Revision: 9}}},
	}}
	data, err := proto.Marshal(&wire.ToHost{Message: &wire.ToHost_Batch{Batch: batch}})
	if err != nil {
		t.Fatal(err)
	}
	a := New(Config{Log: slog.New(slog.DiscardHandler)}, onePort{})
	if _, err := a.receive(data, false); err != nil {
		t.Fatal(err)
	}
	if s := a.Stats(); s.Revision != 9 || s.Nets != 1 || s.Places != len(reset.Places) {
		t.Errorf("the agent has %+v", s)
	}
	file, err := proto.Marshal(a.state.message())
	if err != nil {
		t.Fatal(err)
	}
	if n := bytes.Count(file, []byte("of a later version")); n != 2 {
		t.Errorf("%d unknown fields in the file, expected those of the network and the port", n)
	}
}

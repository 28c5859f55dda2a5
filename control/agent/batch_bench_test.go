// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"fmt"
	"log/slog"
	"testing"

	"google.golang.org/protobuf/proto"

	"weft/central/wire"
)

// BenchmarkBatch receives two batches of a hub in each round. The first adds 20 places to a network
// of 250, and the second removes them.
func BenchmarkBatch(b *testing.B) {
	a := New(Config{Log: slog.New(slog.DiscardHandler)}, emptySwitch{})
	place := func(n int) *wire.Place {
		host := n % 100
		return &wire.Place{Port: fmt.Sprint("port-", n), Net: "n", Mac: []byte{2, 0, 0, 0, byte(n >> 8), byte(n)},
			Addresses: [][]byte{{10, 0, byte(n >> 8), byte(n)}}, Host: fmt.Sprint("host-", host), Endpoint: []byte{172, 16, 0, byte(host)}, Generation: int64(n)}
	}
	var places []*wire.Place
	for n := range 250 {
		places = append(places, place(n))
	}
	revision := &wire.ToHost{Message: &wire.ToHost_Revision{Revision: &wire.Revision{Revision: 1}}}
	receive := func(messages ...*wire.ToHost) rawMessage {
		data, err := proto.Marshal(&wire.ToHost{Message: &wire.ToHost_Batch{Batch: &wire.Batch{Messages: append(messages, revision)}}})
		if err != nil {
			b.Fatal(err)
		}
		return data
	}
	view := &wire.NetView{Net: &wire.Net{Id: "n", Name: "net", Vni: 7}}
	if _, err := a.receive(receive(&wire.ToHost{Message: &wire.ToHost_Reset_{Reset_: &wire.NetReset{View: view, Places: places}}}), false); err != nil {
		b.Fatal(err)
	}
	var added, removed []*wire.ToHost
	for n := range 20 {
		p := place(1000 + n)
		added = append(added, &wire.ToHost{Message: &wire.ToHost_Update{Update: &wire.NetUpdate{Net: "n", Places: []*wire.Place{p}}}})
		removed = append(removed, &wire.ToHost{Message: &wire.ToHost_Update{Update: &wire.NetUpdate{Net: "n", Removed: []string{p.Port}}}})
	}
	batches := []rawMessage{receive(added...), receive(removed...)}
	b.ReportAllocs()
	for b.Loop() {
		for _, m := range batches {
			if _, err := a.receive(m, false); err != nil {
				b.Fatal(err)
			}
		}
	}
	if got := len(a.state.nets["n"].places); got != 250 {
		b.Errorf("%d places", got)
	}
}

type emptySwitch struct{}

func (emptySwitch) Apply(*Changes) error { return nil }

func (emptySwitch) Ports() []LocalPort { return nil }

func (emptySwitch) Trouble() string { return "" }

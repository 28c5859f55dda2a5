// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"log/slog"
	"testing"

	"google.golang.org/protobuf/proto"

	"weft/central/wire"
)

// noSwitch is a Switch that accepts every change and does nothing.
type noSwitch struct{ local []LocalPort }

func (noSwitch) Apply(*Changes) error { return nil }

func (s noSwitch) Ports() []LocalPort { return s.local }
func (s noSwitch) Trouble() string    { return "" }

func fuzzAgent() *Agent {
	return New(Config{Log: slog.New(slog.DiscardHandler)}, noSwitch{[]LocalPort{{Name: "p1", Added: 1}}})
}

// A state file may be damaged, or of another version. The agent either loads or refuses it. A loaded
// state that is saved and loaded again is the same.
func FuzzRestore(f *testing.F) {
	good, err := proto.Marshal(&wire.HostState{Revision: 9, Welcome: &wire.Welcome{Host: "h1", Endpoint: []byte{192, 0, 2, 1}},
		Nets:  []*wire.NetReset{{View: someView(), Places: somePlaces(), Members: [][]byte{{192, 0, 2, 2}}}},
		Ports: []*wire.LocalPort{{Port: &wire.Port{Id: "p1", Net: "n"}, Bound: true, Generation: 7}}})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(good)
	f.Add(good[:len(good)-3])
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, data []byte) {
		saved := new(wire.HostState)
		if proto.Unmarshal(data, saved) != nil { // as readState does
			return
		}
		a := fuzzAgent()
		state := stateOf(saved, a.local)
		state.fill(newBatch())
		first := state.message()
		again := stateOf(proto.CloneOf(first), a.local).message()
		if !proto.Equal(first, again) {
			t.Errorf("%v becomes %v", first, again)
		}
	})
}

// An agent does not crash, whatever message a hub sends.
func FuzzReceive(f *testing.F) {
	for _, m := range []*wire.ToHost{
		{Message: &wire.ToHost_Welcome{Welcome: &wire.Welcome{Host: "h1", Endpoint: []byte{192, 0, 2, 1}}}},
		{Message: &wire.ToHost_Reset_{Reset_: &wire.NetReset{View: someView(), Places: somePlaces()}}},
		{Message: &wire.ToHost_Update{Update: &wire.NetUpdate{Net: "n", View: someView(), Removed: []string{"p1"}}}},
		{Message: &wire.ToHost_Port{Port: &wire.PortUpdate{Ports: []*wire.LocalPort{{Port: &wire.Port{Id: "p1", Net: "n"}, Bound: true}}, Removed: []string{"p2"}}}},
		{Message: &wire.ToHost_Answer{Answer: &wire.Answer{Number: 1, Place: somePlaces()[0]}}},
		{Message: &wire.ToHost_Revision{Revision: &wire.Revision{Revision: 3, Report: true}}},
		{Message: &wire.ToHost_Refused{Refused: &wire.Refused{Port: "p1", Why: "x"}}},
	} {
		b, err := proto.Marshal(m)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b, b)
	}
	f.Fuzz(func(t *testing.T, first, second []byte) {
		a := fuzzAgent()
		_, _ = a.receive(first, true)
		_, _ = a.receive(second, false)
		_ = a.state.message()
		_ = a.state.digests()
	})
}

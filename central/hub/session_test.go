// SPDX-License-Identifier: Apache-2.0

package hub

import (
	"log/slog"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"weft/central/store"
	"weft/central/wire"
)

// A session whose host reads too slowly ends, and is counted once. Messages that the
// ended session does not take are not counted as delivered.
func TestSlowSessionIsCounted(t *testing.T) {
	h := new(Hub)
	stats := &h.stats
	s := &session{wake: make(chan struct{}, 1), hub: h}
	s.queue(make(rawMessage, maxQueue))
	s.queue(make(rawMessage, 1))
	s.queue(make(rawMessage, 1))
	if s.err != errSlow || stats.SlowSessions != 1 || stats.Delivered != 1 || stats.DeliveredBytes != maxQueue {
		t.Errorf("error %v, counters %+v", s.err, *stats)
	}
}

// A host cannot make the hub keep long texts: names of ports beyond the longest declared one
// are left out, a long error text (trouble) is cut, and a long question ends its session.
func TestTextsOfHostsAreLimited(t *testing.T) {
	h := New(nil, nil, slog.New(slog.DiscardHandler))
	s := &session{wake: make(chan struct{}, 1), hub: h, keys: map[string]bool{}}
	h.sessions[s.host] = s
	send := func(m *wire.FromHost) error { return h.receive(s, m) }
	long := strings.Repeat("x", store.MaxName+1)
	for _, name := range []string{long, long[1:]} {
		if err := send(&wire.FromHost{Message: &wire.FromHost_Attach{Attach: &wire.Attach{Port: name}}}); err != nil {
			t.Fatal(err)
		}
	}
	if len(s.keys) != 1 || len(h.attached) != 1 || h.stats.LongNames != 1 {
		t.Errorf("%d names are kept, %d are left out; want 1 and 1", len(s.keys), h.stats.LongNames)
	}
	if err := send(&wire.FromHost{Message: &wire.FromHost_Applied{Applied: &wire.Applied{Trouble: strings.Repeat("é", maxTrouble)}}}); err != nil {
		t.Fatal(err)
	}
	if len(s.trouble) != maxTrouble {
		t.Errorf("%d bytes of a trouble are kept, want %d", len(s.trouble), maxTrouble)
	}
	for _, m := range []*wire.FromHost{
		{Message: &wire.FromHost_Question{Question: &wire.Question{Net: strings.Repeat("x", maxQuestion)}}},
		{Message: &wire.FromHost_Pull{Pull: &wire.Pull{Questions: []*wire.Question{{Net: strings.Repeat("x", maxPull)}}}}},
	} {
		if err := send(m); status.Code(err) != codes.InvalidArgument {
			t.Errorf("%T: error %v, want InvalidArgument", m.GetMessage(), err)
		}
	}
}

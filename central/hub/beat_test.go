// SPDX-License-Identifier: Apache-2.0

package hub

import (
	"log/slog"
	"testing"

	"google.golang.org/protobuf/proto"

	"weft/central/store"
	"weft/central/wire"
)

// A session to which nothing is sent gets at least one empty batch within the promised
// time. A session whose changes wait for the pacer gets these changes instead. A session
// whose report is due gets the request for it.
func TestBeatsCarryWhatWaits(t *testing.T) {
	h := New(noStore{}, nil, slog.New(slog.DiscardHandler))
	var objects []store.Object
	for i := range 3 {
		id, port, net := string(rune('a'+i)), string(rune('p'+i)), string(rune('x'+i))
		objects = append(objects,
			store.Object{Kind: store.KindNet, ID: net, Message: &wire.Net{Id: net, Name: net, Vni: uint32(i + 1)}},
			store.Object{Kind: store.KindHost, ID: id, Message: &wire.Host{Id: id, Name: id, Endpoint: []byte{192, 0, 2, byte(i)}}},
			store.Object{Kind: store.KindPort, ID: port, Message: &wire.Port{Id: port, Name: port, Net: net, Mac: []byte{2, 0, 0, 0, 0, byte(i)}}})
	}
	h.take(1, objects)
	h.round()
	var sessions []*session
	for i := range 3 {
		s, err := h.open(string(rune('a'+i)), &wire.Hello{Ports: []string{string(rune('p' + i))}})
		if err != nil {
			t.Fatal(err)
		}
		s.queued = nil
		sessions = append(sessions, s)
	}
	idle, behind, asked := sessions[0], sessions[1], sessions[2]
	h.take(2, []store.Object{{Kind: store.KindNet, ID: "y", Message: &wire.Net{Id: "y", Name: "other", Vni: 2}}})
	asked.ask = true
	beats := map[*session]int{}
	for range 2 * int(beatWithin/beatTick) {
		h.beatAll()
		for _, s := range sessions {
			if s.empty {
				beats[s]++
				s.empty = false
			}
		}
	}
	for _, s := range sessions {
		if n := beats[s]; n < 1 || n > 2 {
			t.Errorf("host %s: %d beats in twice the promised time", s.host, n)
		}
	}
	if got := revisions(t, idle); len(got) != 0 {
		t.Errorf("the idle session got %v", got)
	}
	if got := revisions(t, behind); len(got) != 1 || got[0].GetRevision() != 2 || behind.behind {
		t.Errorf("the session that waits got %v", got)
	}
	if got := revisions(t, asked); len(got) != 1 || !got[0].GetReport() {
		t.Errorf("the session that is to report got %v", got)
	}
}

// revisions returns the messages Revision in a session's queue.
func revisions(t *testing.T, s *session) (list []*wire.Revision) {
	t.Helper()
	var batch wire.Batch
	for _, raw := range s.queued {
		if err := (proto.UnmarshalOptions{Merge: true}).Unmarshal(raw, &batch); err != nil {
			t.Fatal(err)
		}
	}
	for _, m := range batch.GetMessages() {
		if r := m.GetRevision(); r != nil {
			list = append(list, r)
		}
	}
	return list
}

// SPDX-License-Identifier: Apache-2.0

package hub

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"

	"google.golang.org/protobuf/proto"

	"weft/central/store"
	"weft/central/wire"
	"weft/internal/waitfor"
)

// fleetOfOne returns a hub with one network, one host and its port p1, and the host's
// session.
func fleetOfOne(t *testing.T, from Store) (*Hub, *session) {
	t.Helper()
	h := New(from, nil, slog.New(slog.DiscardHandler))
	h.take(1, []store.Object{
		{Kind: store.KindNet, ID: "n1", Message: &wire.Net{Id: "n1", Name: "n1", Vni: 1}},
		{Kind: store.KindHost, ID: "h1", Message: &wire.Host{Id: "h1", Name: "h1", Endpoint: []byte{192, 0, 2, 1}}},
		{Kind: store.KindPort, ID: "p1", Message: &wire.Port{Id: "p1", Name: "p1", Net: "n1", Mac: []byte{2, 0, 0, 0, 0, 1}}},
	})
	s, err := h.open("h1", &wire.Hello{Ports: []string{"p1"}})
	if err != nil {
		t.Fatal(err)
	}
	return h, s
}

// A host may ask for an address before a port has it. It gets the address as soon as a
// port has it, even while the answer still waits for the store.
func TestEarlyPullDoesNotWaitForStore(t *testing.T) {
	h, s := fleetOfOne(t, noStore{})
	mac := []byte{2, 0, 0, 0, 0, 2}
	pull := &wire.Pull{Number: 1, Questions: []*wire.Question{{Net: "n1", Of: &wire.Question_Mac{Mac: mac}}}}
	if err := h.receive(s, &wire.FromHost{Message: &wire.FromHost_Pull{Pull: pull}}); err != nil {
		t.Fatal(err)
	}
	if len(h.fences) != 1 {
		t.Fatalf("%d answers wait for the store", len(h.fences))
	}
	h.take(2, []store.Object{
		{Kind: store.KindPort, ID: "p2", Message: &wire.Port{Id: "p2", Name: "p2", Net: "n1", Mac: mac}},
		{Kind: store.KindBind, ID: "p2", Message: &wire.Bind{Port: "p2", Host: "h2", Endpoint: []byte{192, 0, 2, 2}}, Revision: 2},
	})
	h.mu.Lock()
	defer h.mu.Unlock()
	h.round()
	if s.behind {
		t.Error("the address waits for the session's turn")
	}
}

// quietStore stays at revision 1.
type quietStore struct{ noStore }

func (quietStore) Revision(context.Context) (int64, error) { return 1, nil }

// failingStore has no leader.
type failingStore struct{ noStore }

func (failingStore) Revision(context.Context) (int64, error) { return 0, errors.New("no leader") }

// The answer to a question for an absent address says whether nobody has the address,
// the question is refused, or the store could not be asked.
func TestAnswersSayWhyThereIsNoPlace(t *testing.T) {
	question := func(net string) *wire.Question {
		return &wire.Question{Net: net, Of: &wire.Question_Mac{Mac: []byte{2, 0, 0, 0, 0, 9}}}
	}
	for _, test := range []struct {
		store Store
		net   string
		want  wire.Absence
	}{
		{quietStore{}, "n1", wire.Absence_ABSENCE_NOBODY},
		{failingStore{}, "n1", wire.Absence_ABSENCE_LATE},
		{quietStore{}, "other", wire.Absence_ABSENCE_REFUSED},
	} {
		h, s := fleetOfOne(t, test.store)
		if err := h.receive(s, &wire.FromHost{Message: &wire.FromHost_Question{Question: question(test.net)}}); err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() { h.catchUp(ctx) })
		waitfor.True(t, "an answer", func() bool { return lastAnswer(t, h, s) != nil })
		stop()
		running.Wait()
		if got := lastAnswer(t, h, s); got.GetAbsence() != test.want || got.GetPlace() != nil {
			t.Errorf("answer %v, expected %s", got, test.want)
		}
		if late := h.Stats().QuestionsLate; (late == 1) != (test.want == wire.Absence_ABSENCE_LATE) {
			t.Errorf("%d late questions are counted", late)
		}
	}
}

// hungStore answers no question for its revision until it is released.
type hungStore struct {
	noStore
	count   atomic.Int32
	release chan struct{}
}

func (s *hungStore) Revision(ctx context.Context) (int64, error) {
	s.count.Add(1)
	select {
	case <-s.release:
		return 1, nil
	case <-ctx.Done():
		return 0, ctx.Err()
	}
}

// A hub has only one request to a store that does not answer. It does not ask again for later questions.
func TestHungStoreIsAskedOnce(t *testing.T) {
	from := &hungStore{release: make(chan struct{})}
	h, s := fleetOfOne(t, from)
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	go h.catchUp(ctx)
	ask := func(number uint64) wire.Absence {
		question := &wire.Question{Number: number, Net: "n1", Of: &wire.Question_Mac{Mac: []byte{2, 0, 0, 0, 0, 9}}}
		if err := h.receive(s, &wire.FromHost{Message: &wire.FromHost_Question{Question: question}}); err != nil {
			t.Fatal(err)
		}
		waitfor.True(t, "an answer", func() bool { return lastAnswer(t, h, s).GetNumber() == number })
		return lastAnswer(t, h, s).GetAbsence()
	}
	for number := range uint64(2) {
		if got := ask(number + 1); got != wire.Absence_ABSENCE_LATE {
			t.Errorf("answer %s of a store that hangs", got)
		}
	}
	if n := from.count.Load(); n != 1 {
		t.Errorf("the store was asked %d times", n)
	}
	close(from.release)
	if got := ask(3); got != wire.Absence_ABSENCE_NOBODY {
		t.Errorf("answer %s of a store that answers again", got)
	}
}

// If a host has removed a port itself, the message about the port waits for its turn in the pacer. If the
// declaration of a port that the host still has was deleted, the message does not wait.
func TestOnlyThePresentPortIsUrgent(t *testing.T) {
	for _, removed := range []bool{true, false} {
		h, s := fleetOfOne(t, noStore{})
		s.queued = nil
		h.mu.Lock()
		h.take(2, []store.Object{{Kind: store.KindBind, ID: "p1", Message: &wire.Bind{Port: "p1", Host: "h1"}, Revision: 2}})
		h.round()
		h.mu.Unlock()
		if s.behind {
			t.Fatal("the binding waits for the session's turn")
		}
		if removed {
			if err := h.receive(s, &wire.FromHost{Message: &wire.FromHost_Detach{Detach: &wire.Detach{Port: "p1"}}}); err != nil {
				t.Fatal(err)
			}
		} else {
			h.mu.Lock()
			h.take(3, []store.Object{{Kind: store.KindPort, ID: "p1"}})
			h.mu.Unlock()
		}
		h.mu.Lock()
		h.round()
		if waits := s.behind && s.inLine; waits != removed {
			t.Errorf("the host has removed the port: %t; its message waits: %t", removed, waits)
		}
		h.mu.Unlock()
	}
}

// lastAnswer returns the last message to a host if it is an Answer.
func lastAnswer(t *testing.T, h *Hub, s *session) *wire.Answer {
	t.Helper()
	h.mu.Lock()
	defer h.mu.Unlock()
	var batch wire.Batch
	for _, raw := range s.queued {
		if err := (proto.UnmarshalOptions{Merge: true}).Unmarshal(raw, &batch); err != nil {
			t.Fatal(err)
		}
	}
	if n := len(batch.GetMessages()); n > 0 {
		return batch.GetMessages()[n-1].GetAnswer()
	}
	return nil
}

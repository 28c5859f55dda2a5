// SPDX-License-Identifier: Apache-2.0

package store

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"weft/central/wire"
)

// heldKV is a KV whose transactions wait until the channel "release" is closed. Before it waits, a
// transaction sends to the channel "begun".
type heldKV struct {
	clientv3.KV
	begun   chan struct{}
	release chan struct{}
}

func (k *heldKV) Txn(ctx context.Context) clientv3.Txn {
	select {
	case k.begun <- struct{}{}:
	default:
	}
	<-k.release
	return k.KV.Txn(ctx)
}

func hold(s *Store) *heldKV {
	k := &heldKV{KV: s.kv, begun: make(chan struct{}, 1), release: make(chan struct{})}
	s.kv = k
	return k
}

func queued(t *testing.T, s *Store, id string, changes ...*wire.Change) *applying {
	t.Helper()
	a := s.newApplying(t.Context(), id, mustCollect(t, changes), &wire.ChangeRequest{Id: id, Changes: changes})
	if err := s.requests.enqueue(s, a); err != nil {
		t.Fatal(err)
	}
	return a
}

// Requests that arrive during a transaction take effect in the next one, and a refused one
// does not affect the others.
func TestRequestsShareATransaction(t *testing.T) {
	s := testMember(t).Store()
	apply(t, s, setNet("blue", 1))
	before := s.Load()
	k := hold(s)
	list := []*applying{queued(t, s, "first", setPort(port("p0", "blue", 0)))}
	<-k.begun
	for n := 1; n <= 20; n++ {
		net := "blue"
		if n == 7 {
			net = "red" // not declared
		}
		list = append(list, queued(t, s, fmt.Sprint("r", n), setPort(port(fmt.Sprint("p", n), net, n))))
	}
	list = append(list, queued(t, s, "r3", deleteNet("blue"))) // an id that is there
	close(k.release)
	for n, a := range list {
		<-a.finished
		if refused := new(Refused); n == 7 != errors.As(a.err, &refused) || n != 7 && a.err != nil {
			t.Errorf("request %d: %v", n, a.err)
		}
	}
	for _, n := range []int{1, 3, 20, 21} {
		if list[n].revision != list[2].revision {
			t.Errorf("request %d has revision %d, request 2 revision %d", n, list[n].revision, list[2].revision)
		}
	}
	load := s.Load()
	if load.Transactions-before.Transactions != 2 || load.Applied-before.Applied != 20 || load.Waiting != 0 {
		t.Errorf("counted %+v, before %+v", load, before)
	}
	wantGuards(t, s)
}

// A request whose caller has given up before its transaction has no effect.
func TestGivenUpRequestsAreLeftOut(t *testing.T) {
	s := testMember(t).Store()
	k := hold(s)
	first := queued(t, s, "first", setNet("blue", 1))
	<-k.begun
	ctx, cancel := context.WithCancel(t.Context())
	changes := []*wire.Change{setNet("red", 2)}
	given := s.newApplying(ctx, "red", mustCollect(t, changes), &wire.ChangeRequest{Changes: changes})
	if err := s.requests.enqueue(s, given); err != nil {
		t.Fatal(err)
	}
	cancel()
	last := queued(t, s, "last", setNet("green", 3))
	close(k.release)
	for _, a := range []*applying{first, given, last} {
		<-a.finished
	}
	if first.err != nil || !errors.Is(given.err, context.Canceled) || last.err != nil {
		t.Errorf("%v; %v; %v", first.err, given.err, last.err)
	}
	objects := dump(t, s)
	if objects[netKey("green")] == "" || objects[netKey("red")] != "" {
		t.Errorf("stored: %q", objects)
	}
}

func TestFullQueueAnswersBusy(t *testing.T) {
	s := testMember(t).Store()
	k := hold(s)
	first := queued(t, s, "first", setNet("blue", 1))
	<-k.begun
	for n := range maxWaiting {
		queued(t, s, fmt.Sprint("r", n))
	}
	s.requests.note(16 * time.Millisecond)
	_, err := s.Apply(t.Context(), &wire.ChangeRequest{Id: "late", Changes: []*wire.Change{setNet("red", 2)}})
	var busy *Busy
	if !errors.As(err, &busy) || busy.Waiting != maxWaiting || busy.RetryIn < leastBusy || busy.RetryIn > mostBusy {
		t.Errorf("a request beyond the limit: %v", err)
	}
	if n := s.Load().Busy; n != 1 {
		t.Errorf("%d busy answers are counted", n)
	}
	close(k.release)
	<-first.finished
	for { // the queue empties
		if _, err = s.Apply(t.Context(), &wire.ChangeRequest{Id: "late", Changes: []*wire.Change{setNet("red", 2)}}); !errors.As(err, &busy) {
			break
		}
	}
	if err != nil {
		t.Error(err)
	}
}

// The bytes of the waiting requests have a limit, too. One request of any size may wait.
func TestQueueLimitsBytes(t *testing.T) {
	s := &Store{ops: embeddedOps, bytes: embeddedBytes}
	q := &s.requests
	q.running = true // nobody takes the requests
	if err := q.enqueue(s, &applying{size: maxWaitingBytes + 1}); err != nil {
		t.Error(err)
	}
	if err := q.enqueue(s, &applying{size: 1}); err == nil {
		t.Error("a request beyond the limit of bytes is accepted")
	}
}

// A request that expects a revision has a transaction of its own.
func TestTakeKeepsExpectingRequestsApart(t *testing.T) {
	s := &Store{ops: embeddedOps, bytes: embeddedBytes}
	q := &s.requests
	for _, expected := range []int64{0, 0, 7, 0, 8} {
		q.waiting = append(q.waiting, &applying{expected: expected})
	}
	for _, want := range []int{2, 1, 1, 1, 0} {
		if got := len(q.take(s)); got != want {
			t.Errorf("%d requests, expected %d", got, want)
		}
	}
}

// While requests arrive often, deletions wait for others, but not long.
func TestDeletionsWaitForOthers(t *testing.T) {
	now := time.Now()
	deletion := func() *applying { return &applying{objects: []*target{{kind: "port", id: "p1"}}, arrival: now} }
	expecting := deletion()
	expecting.expected = 7
	set := &applying{objects: []*target{{kind: "port", id: "p2", message: port("p2", "blue", 2)}}, arrival: now}
	for _, c := range []struct {
		name    string
		waiting []*applying
		gap     time.Duration
		now     time.Time
		waits   bool
	}{
		{"a deletion", []*applying{deletion()}, 0, now, true},
		{"two deletions", []*applying{deletion(), deletion()}, 0, now, true},
		{"a deletion for long", []*applying{deletion()}, 0, now.Add(deletionWait), false},
		{"a deletion, and requests are rare", []*applying{deletion()}, oftenGap, now, false},
		{"a deletion that expects a revision", []*applying{expecting}, 0, now, false},
		{"a deletion and a change", []*applying{deletion(), set}, 0, now, false},
		{"a full group", slices.Repeat([]*applying{deletion()}, groupMost), 0, now, false},
		{"nothing", nil, 0, now, false},
	} {
		q := &requests{waiting: c.waiting, gap: c.gap}
		if _, wait := q.patient(c.now); wait > 0 != c.waits || wait > deletionWait {
			t.Errorf("%s: waits %s", c.name, wait)
		}
	}
	s := &Store{ops: embeddedOps, bytes: embeddedBytes}
	q := &s.requests
	q.waiting, q.running, q.last = []*applying{deletion()}, true, now
	arrived, _ := q.patient(now)
	if err := q.enqueue(s, set); err != nil {
		t.Fatal(err)
	}
	select {
	case <-arrived:
	default:
		t.Error("an arrival ends no wait")
	}
	if group := q.next(s); len(group) != 2 {
		t.Errorf("a transaction of %d requests, expected 2", len(group))
	}
}

// TestGroupsAreLikeSequences applies random requests in groups, and the same requests one
// after another to another store. Both stores must accept and refuse the same requests. The
// grouped store does not read locally, because it would then decide refused requests after the rest of
// their group.
func TestGroupsAreLikeSequences(t *testing.T) {
	grouped, single := testMember(t).Store(), testMember(t).Store()
	grouped.local = false
	r := rand.New(rand.NewPCG(1, 2))
	accepted := 0
	for round := range 30 {
		var group []*applying
		for n := range 1 + r.IntN(6) {
			var changes []*wire.Change
			for range 1 + r.IntN(3) {
				changes = append(changes, randomChange(r))
			}
			a := grouped.newApplying(t.Context(), fmt.Sprint(round, "-", n), mustCollect(t, changes), &wire.ChangeRequest{Changes: changes})
			group = append(group, a)
		}
		grouped.applyGroup(t.Context(), group)
		for _, a := range group {
			alone := single.newApplying(t.Context(), a.id, a.objects, &wire.ChangeRequest{})
			single.applyGroup(t.Context(), []*applying{alone})
			if reasonOf(a.err) != reasonOf(alone.err) {
				t.Fatalf("request %s: %v, alone: %v", a.id, a.err, alone.err)
			}
			if a.err == nil {
				accepted++
			}
		}
		one, other := dump(t, grouped), dump(t, single)
		if fmt.Sprint(one) != fmt.Sprint(other) {
			t.Fatalf("round %d: %q, alone: %q", round, one, other)
		}
	}
	if accepted < 10 {
		t.Errorf("only %d requests were accepted", accepted)
	}
	wantGuards(t, grouped)
}

// reasonOf returns the reason of a refusal, or the text of another error.
func reasonOf(err error) string {
	var refused *Refused
	if errors.As(err, &refused) {
		return fmt.Sprint("refused ", refused.Reason)
	}
	return fmt.Sprint(err)
}

// randomChange returns a change of one of a few objects, with one of a few addresses, so that changes
// often conflict.
func randomChange(r *rand.Rand) *wire.Change {
	net, host, p := fmt.Sprint("n", r.IntN(3)), fmt.Sprint("h", r.IntN(3)), fmt.Sprint("p", r.IntN(6))
	switch r.IntN(10) {
	case 0:
		return deleteNet(net)
	case 1:
		return deleteHost(host)
	case 2, 3:
		return deletePort(p)
	case 4:
		return setNet(net, uint32(1+r.IntN(3)))
	case 5:
		return setHost(host, byte(1+r.IntN(3)))
	}
	declared := port(p, net, r.IntN(6))
	if r.IntN(2) == 0 {
		declared.Host = host
	}
	return setPort(declared)
}

// An attempt ends when the member has a new leader, because the request may be lost with the
// old one.
func TestAttemptEndsWithTheLeader(t *testing.T) {
	changed := make(chan struct{})
	s := &Store{leaderChanged: func() <-chan struct{} { return changed }}
	ctx, cancel := s.attempt(t.Context(), time.Hour)
	defer cancel()
	if ctx.Err() != nil {
		t.Error(ctx.Err())
	}
	close(changed)
	<-ctx.Done()
	if !errors.Is(ctx.Err(), context.Canceled) {
		t.Error(ctx.Err())
	}
}

func TestPatienceGrows(t *testing.T) {
	s := &Store{}
	if s.patience(0) != attemptTimeout || s.patience(2) != 4*attemptTimeout || s.patience(50) != largeTimeout {
		t.Error(s.patience(0), s.patience(2), s.patience(50))
	}
}

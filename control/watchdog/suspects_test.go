// SPDX-License-Identifier: Apache-2.0

package watchdog

import (
	"slices"
	"testing"
	"time"

	"weft/datapath"
)

// The suspects of a hang are the ports in datapath.InHand: the marks of the queues that the worker is
// handling.
func TestInHandNamesSuspects(t *testing.T) {
	visit := func(port, queue uint64) uint64 { return 99<<32 | port<<16 | queue }
	sending := func(port, queue, sending uint64) uint64 { return sending<<32 | queue<<16 | port }
	for name, c := range map[string]struct {
		visit, sending uint64
		want           []Suspect
	}{
		"nothing":           {visit(0, 0), 0, nil},
		"receives":          {visit(3, 1), 0, []Suspect{{3, 1, false}}},
		"copies":            {visit(3, 1), sending(4, 2, 0), []Suspect{{4, 2, true}, {3, 1, false}}},
		"copies to its own": {visit(3, 1), sending(3, 2, 0), []Suspect{{3, 2, true}}},
		"notifies":          {visit(3, 1), sending(4, 2, 1), []Suspect{{4, 2, true}}},
		"sends its own":     {visit(0, 0), sending(4, 2, 0), []Suspect{{4, 2, true}}},
	} {
		if got := inHand(datapath.InHand{Visit: c.visit, Sending: c.sending}); !slices.Equal(got, c.want) {
			t.Errorf("%s: %+v, want %+v", name, got, c.want)
		}
	}
}

// blames is a Suspects with a simulated clock. Ports with numbers from 10 on are foreign: they are a
// guest's.
type blames struct {
	*Suspects
	now time.Time
}

func newBlames() *blames { return &blames{NewSuspects(), time.Unix(1e9, 0)} }

func (b *blames) hang(ports ...uint32) []uint32 {
	var h Hang
	for _, p := range ports {
		h.Suspects = append(h.Suspects, Suspect{Port: p})
	}
	return b.Blame(h, b.now, func(p uint32) bool { return p >= 10 }, "hung")
}

func (b *blames) wait(d time.Duration) { b.now = b.now.Add(d) }

func (b *blames) held(port uint32) bool { return b.Held(port, b.now) != nil }

// A hang finds a guest's port and a kernel device in use. Only the guest's port is held back.
func TestTheForeignPortPays(t *testing.T) {
	for _, c := range []struct{ suspects, want []uint32 }{
		{nil, nil}, {[]uint32{1}, []uint32{1}}, {[]uint32{10}, []uint32{10}},
		{[]uint32{1, 10}, []uint32{10}}, {[]uint32{10, 1}, []uint32{10}}, {[]uint32{10, 11}, []uint32{10, 11}},
	} {
		b := newBlames()
		if len(c.want) == 2 {
			b.hang(c.suspects...) // the first hang holds neither back
		}
		if got := b.hang(c.suspects...); !slices.Equal(got, c.want) {
			t.Errorf("%v in hand: %v are held, want %v", c.suspects, got, c.want)
		}
	}
}

// A port is the only one in use at each hang. It is held back longer each time, and in the end until
// it is deleted.
func TestHangsForGood(t *testing.T) {
	b := newBlames()
	for n := range HangsForGood - 1 {
		b.hang(10)
		hold := firstHold << n
		if b.wait(hold - 1); !b.held(10) {
			t.Errorf("hang %d: not held for %v", n+1, hold)
		}
		if b.wait(1); b.held(10) {
			t.Errorf("hang %d: held for longer than %v", n+1, hold)
		}
	}
	b.hang(10)
	if b.wait(1000 * time.Hour); !b.held(10) || b.Hangs(10) != HangsForGood {
		t.Errorf("after %d hangs the port may come back", b.Hangs(10))
	}
	if b.held(11) {
		t.Error("another port is held")
	}
	if b.Forget(10); b.held(10) || b.Hangs(10) != 0 {
		t.Error("a port that was deleted is remembered")
	}
}

// Two ports may have caused a hang. The first such hang costs neither of them anything, and no number
// of them holds a port back for good. So ports that collude cannot put another port out of service.
func TestAccidentsAreNotForGood(t *testing.T) {
	b := newBlames()
	if got := b.hang(10, 11); got != nil || b.held(10) || b.held(11) {
		t.Fatalf("%v are held after one hang of either", got)
	}
	for n := range uint32(20) {
		other := 12 + n%3
		b.hang(10, other)
		if !b.held(10) || b.held(other) != (n > 2) {
			t.Fatalf("hang %d: held %v and %v", n+2, b.held(10), b.held(other))
		}
		if b.wait(mostSharedHold); b.held(10) || b.held(other) {
			t.Fatalf("hang %d: held for longer than %v", n+2, mostSharedHold)
		}
	}
}

// A hang without a proven owner does not shorten a hold.
func TestHoldsAreNotShortened(t *testing.T) {
	b := newBlames()
	b.hang(10)
	b.hang(10)
	b.hang(10, 11)
	if b.wait(2*firstHold - 1); !b.held(10) {
		t.Error("not held for the time after two hangs")
	}
	if b.wait(1); b.held(10) {
		t.Error("held for longer, for a hang without a proof")
	}
}

// Workers hang in the memory of a proven owner. Only the owner is held back. After HangsForGood hangs
// it is held until it is deleted, even if the same other port is in use each time.
func TestTheOwnerPays(t *testing.T) {
	b := newBlames()
	for range HangsForGood {
		h := Hang{Suspects: []Suspect{{Port: 10}, {Port: 11}}, Owners: []uint32{11}}
		if got := b.Blame(h, b.now, func(uint32) bool { return true }, "hung"); !slices.Equal(got, h.Owners) {
			t.Fatalf("%v are held, want %v", got, h.Owners)
		}
		if !b.held(11) || b.held(10) || b.Hangs(10) != 0 {
			t.Fatal("the owner is not held, or the other port is")
		}
		b.wait(mostHold)
	}
	if !b.held(11) {
		t.Errorf("the owner may come back after %d hangs", HangsForGood)
	}
}

// Hangs that are long past do not count.
func TestHangsAreForgotten(t *testing.T) {
	b := newBlames()
	for range 10 {
		b.hang(10)
		if b.wait(forgetAfter); b.held(10) {
			t.Fatal("the port is held, though its hangs are far apart")
		}
	}
}

// SPDX-License-Identifier: Apache-2.0

package lacp

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"
)

// end is one end of several links, with the clock of its rig.
type end struct {
	Aggregator
	config Config
	links  []Link
}

// rig has the two ends of an aggregation, with cables between their links. Its clock stands
// still between steps.
type rig struct {
	t    *testing.T
	now  time.Time
	ends [2]end
	cut  map[uint32]bool // cables that lose PDUs
	sent [2]int
}

func newRig(t *testing.T, links int, configs ...Config) *rig {
	r := &rig{t: t, now: time.Unix(1000, 0), cut: map[uint32]bool{}}
	for i := range r.ends {
		e := &r.ends[i]
		e.config = configs[i]
		e.config.System, e.config.SystemPriority = [6]byte{2, 0, 0, 0, 0, byte(i + 1)}, 65535
		for n := range links {
			e.links = append(e.links, Link{Number: uint32(n + 1), Up: true, Port: uint16(n + 1), Priority: 65535, Key: uint16(i + 7)})
		}
	}
	return r
}

// run lets both ends exchange PDUs for a time.
func (r *rig) run(duration time.Duration) {
	const tick = 50 * time.Millisecond
	for end := r.now.Add(duration); r.now.Before(end); r.now = r.now.Add(tick) {
		for i := range r.ends {
			e, peer := &r.ends[i], &r.ends[1-i]
			for _, f := range e.Step(r.now, e.config, e.links) {
				r.sent[i]++
				if !r.cut[f.Number] {
					peer.Receive(r.now, f.Number, f.PDU.Append(nil))
				}
			}
		}
	}
}

// expect compares the links that both ends use with the digits in each element of want.
func (r *rig) expect(want ...string) {
	r.t.Helper()
	for i := range r.ends {
		got := ""
		for _, m := range r.ends[i].Show() {
			if m.MayEnable {
				got += fmt.Sprint(m.Number)
			}
			if carries := m.Actor.State&(Collecting|Distributing) != 0; carries != m.MayEnable || m.MayEnable != r.ends[i].MayEnable(m.Number) {
				r.t.Errorf("%+v", m)
			}
		}
		if w := want[i%len(want)]; got != w {
			r.t.Errorf("end %d uses links %q, want %q: %+v", i, got, w, r.ends[i].Show())
		}
	}
}

// Two ends find each other if at least one is active. They lose each other after three
// intervals of silence. The interval is the one that the end asked for, so the time is 3 s or
// 90 s.
func TestNegotiation(t *testing.T) {
	for _, c := range []struct {
		configs [2]Config
		up      string
		silence time.Duration
	}{
		{[2]Config{{Active: true, Fast: true}, {Active: true, Fast: true}}, "12", 3 * time.Second},
		{[2]Config{{Active: true, Fast: true}, {Fast: true}}, "12", 3 * time.Second},
		{[2]Config{{}, {Active: true}}, "12", 90 * time.Second},
		{[2]Config{{Active: true}, {Active: true}}, "12", 90 * time.Second},
		{[2]Config{{}, {}}, "", 0},
	} {
		r := newRig(t, 2, c.configs[:]...)
		r.run(2 * time.Second)
		r.expect(c.up)
		if r.ends[0].Negotiated() != (c.up != "") {
			t.Error("negotiated")
		}
		if c.up == "" {
			continue
		}
		r.run(3 * time.Minute) // PDUs come in time
		r.expect(c.up)
		r.cut[2] = true
		longest := 30 * time.Second
		if c.silence < longest {
			longest = time.Second
		}
		r.run(c.silence - longest - 200*time.Millisecond)
		r.expect("12")
		r.run(longest + 400*time.Millisecond)
		r.expect("1")
		r.run(3 * time.Second)
		if m := r.ends[0].Show()[1]; m.Status != StatusDefaulted || m.Stats.Expired != 2 || m.Stats.Defaulted != 1 || m.Attached {
			t.Errorf("a silent partner: %+v", m)
		}
		r.cut[2] = false
		r.run(31 * time.Second)
		r.expect("12")
	}
}

// An end sends PDUs at the interval that its partner asks for.
func TestIntervals(t *testing.T) {
	r := newRig(t, 1, Config{Active: true, Fast: true}, Config{Active: true})
	r.run(10 * time.Second)
	r.sent = [2]int{}
	r.run(5 * time.Minute)
	if r.sent[0] < 10 || r.sent[0] > 11 || r.sent[1] < 295 || r.sent[1] > 301 {
		t.Errorf("sent %v PDUs in 5 minutes, want 10 slow and 300 fast ones", r.sent)
	}
	r.ends[1].config.Fast = true
	r.run(time.Second)
	r.sent = [2]int{}
	r.run(10 * time.Second)
	if r.sent[0] < 9 {
		t.Errorf("%d PDUs after the partner asked for fast ones", r.sent[0])
	}
}

// A link that goes down leaves the aggregation at once, and at the other end with its next PDU.
// The other links stay.
func TestLinks(t *testing.T) {
	r := newRig(t, 3, Config{Active: true, Fast: true}, Config{Active: true, Fast: true})
	r.run(2 * time.Second)
	r.expect("123")
	r.ends[0].links[1].Up = false
	r.run(100 * time.Millisecond)
	if r.ends[0].MayEnable(2) {
		t.Error("a link that is down")
	}
	r.run(5 * time.Second)
	r.expect("13")
	r.ends[0].links[1].Up = true
	r.run(2 * time.Second)
	r.expect("123")
	if n := r.ends[0].Show()[1].Stats.Carrier; n != 3 {
		t.Errorf("%d changes of the link, want 3", n)
	}
	r.ends[0].links = r.ends[0].links[:1]
	r.run(5 * time.Second)
	r.expect("1")
}

// Links to another system, with another key on either end, or back to the own system do not join.
// The aggregation stays with its partner as long as one link has it.
func TestStrangers(t *testing.T) {
	r := newRig(t, 3, Config{Active: true, Fast: true}, Config{Active: true, Fast: true})
	r.ends[0].links[2].Key = 99
	r.run(2 * time.Second)
	r.expect("12")
	r.ends[0].links[2].Key = r.ends[0].links[0].Key
	r.run(2 * time.Second)
	r.expect("123")
	now := r.now
	pdu := func(number uint32, system byte, state State) []byte {
		actor := r.ends[0].Show()[number-1].Actor
		return (&PDU{Actor: Info{System: [6]byte{2, 0, 0, 0, 0, system}, Port: 1, State: state}, Partner: actor}).Append(nil)
	}
	step := func() { r.ends[0].Step(now, r.ends[0].config, r.ends[0].links) }
	now = now.Add(time.Second)
	r.ends[0].Receive(now, 1, pdu(1, 9, Activity|Aggregation|Synchronization)) // a better system, by its priority
	step()
	if r.ends[0].MayEnable(1) || !r.ends[0].MayEnable(2) {
		t.Errorf("a stranger on link 1: %+v", r.ends[0].Show())
	}
	for _, n := range []uint32{2, 3} {
		r.ends[0].Receive(now, n, pdu(n, 9, Activity|Synchronization)) // does not aggregate
	}
	step()
	if r.ends[0].MayEnable(2) || r.ends[0].MayEnable(3) || !r.ends[0].MayEnable(1) {
		t.Errorf("the only partner left is the stranger: %+v", r.ends[0].Show())
	}
	r.ends[0].Receive(now, 1, pdu(1, 1, Activity|Aggregation|Synchronization))
	step()
	if r.ends[0].MayEnable(1) || !r.ends[0].MayEnable(2) || r.ends[0].MayEnable(3) {
		t.Errorf("a loop, and a partner that does not aggregate: %+v", r.ends[0].Show())
	}
}

// Without a partner, links carry frames only as a fallback.
func TestFallback(t *testing.T) {
	r := newRig(t, 2, Config{Active: true, Fallback: true}, Config{Active: true, Fallback: true})
	r.cut[1], r.cut[2] = true, true
	r.run(2 * time.Second)
	r.expect("")
	r.run(2 * time.Second)
	r.expect("12")
	if r.ends[0].Negotiated() {
		t.Error("negotiated without a partner")
	}
}

// A partner that sends many PDUs, and contradicts each of ours, gets at most three answers a
// second. Only five of its PDUs a second count.
func TestRates(t *testing.T) {
	var a Aggregator
	now, sent := time.Unix(1000, 0), 0
	links := []Link{{Number: 1, Up: true, Port: 1, Key: 1}}
	for range 200 {
		a.Receive(now, 1, (&PDU{Actor: Info{System: [6]byte{2}, State: Activity}}).Append(nil))
		sent += len(a.Step(now, Config{Active: true}, links))
		now = now.Add(50 * time.Millisecond)
	}
	m := a.Show()[0]
	if sent > 30 || sent < 27 || m.Stats.Received > 50 || m.Stats.Received < 45 || m.Stats.Excess < 100 || m.Stats.Deferred == 0 || m.Stats.Sent != uint64(sent) {
		t.Errorf("in 10 seconds sent %d, %+v", sent, m.Stats)
	}
}

// A decoded PDU equals the encoded one. Other frames are refused and counted.
func TestPDUs(t *testing.T) {
	want := PDU{Actor: Info{1, [6]byte{1, 2, 3, 4, 5, 6}, 2, 3, 4, Activity | Expired}, Partner: Info{65535, [6]byte{6}, 9, 8, 7, Defaulted}}
	b := want.Append(nil)
	if got, err := Parse(append(slices.Clone(b), 0, 0)); err != nil || got != want || len(b) != PDULen {
		t.Errorf("%+v %v, want %+v", got, err, want)
	}
	if got := strings.Join(State(0xff).Words(), " "); got != "activity timeout aggregation synchronized collecting distributing defaulted expired" {
		t.Error(got)
	}
	var a Aggregator
	a.Step(time.Unix(0, 0), Config{}, []Link{{Number: 1, Up: true}})
	for i, change := range []func([]byte) []byte{
		func(b []byte) []byte { return b[:PDULen-1] }, func([]byte) []byte { return nil },
		func(b []byte) []byte { b[0] = 3; return b }, func(b []byte) []byte { b[3] = 19; return b },
		func(b []byte) []byte { b[22] = 1; return b }, func(b []byte) []byte { b[0] = 2; return b },
	} {
		a.Receive(time.Unix(int64(10*i), 0), 1, change(slices.Clone(b)))
	}
	a.Receive(time.Unix(0, 0), 9, b) // no such link
	if s := a.Show()[0].Stats; s.Bad != 5 || s.Markers != 1 || s.Received != 0 {
		t.Errorf("%+v", s)
	}
}

// Any bytes either decode to a PDU that encodes to the same fields, or give an error. After any
// sequence of PDUs, the links in use have the same partner, and no link has sent more than its
// limit.
func FuzzReceive(f *testing.F) {
	f.Add(uint64(1), (&PDU{Actor: Info{System: [6]byte{2}, State: Activity | Aggregation | Synchronization}}).Append(nil))
	f.Add(uint64(2), []byte{subtypeMarker})
	f.Fuzz(func(t *testing.T, seed uint64, raw []byte) {
		if p, err := Parse(raw); err == nil {
			if again, err := Parse(p.Append(nil)); err != nil || again != p {
				t.Fatalf("%+v %v, want %+v", again, err, p)
			}
		}
		r := rand.New(rand.NewPCG(seed, 1))
		var a Aggregator
		now := time.Unix(1000, 0)
		c := Config{Active: seed&1 == 0, Fast: seed&2 == 0, System: [6]byte{9}}
		links := []Link{{1, true, 1, 1, 1}, {2, true, 2, 1, 1}, {3, true, 3, 1, 1}}
		for range 100 {
			number := 1 + r.Uint32N(3)
			b := slices.Clone(raw)
			for i := range b {
				if r.IntN(30) == 0 {
					b[i] = byte(r.Uint32())
				}
			}
			if m := a.member(number); m != nil && r.IntN(2) == 0 && len(b) >= PDULen {
				mine := a.actor(m)
				mine.write(b[atPartner+2:])
			}
			a.Receive(now, number, b)
			links[r.IntN(3)].Up = r.IntN(8) > 0
			if frames := a.Step(now, c, links); len(frames) > len(links) {
				t.Fatal(frames)
			}
			var lead *Member
			for _, m := range a.Show() {
				if !m.MayEnable {
					continue
				}
				if lead == nil {
					lead = &m
				}
				if m.Partner.System != lead.Partner.System || m.Partner.Key != lead.Partner.Key || m.Partner.System == c.System || !links[m.Number-1].Up {
					t.Fatalf("%+v beside %+v", m, lead)
				}
			}
			now = now.Add(time.Duration(r.IntN(2000)) * time.Millisecond)
		}
	})
}

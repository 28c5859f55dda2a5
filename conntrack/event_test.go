// SPDX-License-Identifier: Apache-2.0

package conntrack

import (
	"slices"
	"strings"
	"testing"

	"weft/internal/shm"
)

func events(t *testing.T, ring *shm.Consumer) (list []string) {
	t.Helper()
	for msg := ring.Next(); msg != nil; msg = ring.Next() {
		e, err := ParseEvent(msg)
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, strings.TrimSpace(e.Kind.String()+" "+e.Reason.String())+" "+string(e.Entry.AppendTo(nil, FormatOptions{})))
	}
	ring.Release()
	return list
}

// Workers report only the watched kinds and zone. An event has its reason and the
// connection's state.
func TestEvents(t *testing.T) {
	r := newRig(t, 64)
	ring := r.tr.Events()
	five := uint16(5)
	there, back := udpFrame("10.0.0.1:1000", "10.0.0.2:53", 10), udpFrame("10.0.0.2:53", "10.0.0.1:1000", 10)
	there6 := udpFrame("[fd00::1]:1000", "[fd00::2]:53", 10)
	play := func() {
		for _, zone := range []uint16{5, 6} {
			r.send(there, Request{Zone: zone, Commit: true, Mark: 3, MarkMask: 7})
			r.send(back, Request{Zone: zone})
			r.send(back, Request{Zone: zone, Commit: true, Mark: 4, MarkMask: 7})
		}
		r.send(there6, Request{Zone: 5, Commit: true})
		r.now += 1000 * second
		for range 100 {
			r.now += second
			r.tr.Sweep(r.now)
		}
	}
	const text = "udp,orig=(src=10.0.0.1,dst=10.0.0.2,sport=1000,dport=53),reply=(src=10.0.0.2,dst=10.0.0.1,sport=53,dport=1000),zone=5,mark="
	const text6 = "udp,orig=(src=fd00::1,dst=fd00::2,sport=1000,dport=53),reply=(src=fd00::2,dst=fd00::1,sport=53,dport=1000),zone=5"
	for _, c := range []struct {
		kinds uint8
		zone  *uint16
		want  []string
	}{
		{0, nil, nil},
		{AllEvents, &five, []string{"new " + text + "3", "update state " + text + "3", "update mark " + text + "4", "new " + text6,
			"destroy timeout " + text + "4", "destroy timeout " + text6}},
		{1 << eventDestroy, &five, []string{"destroy timeout " + text + "4", "destroy timeout " + text6}},
		{0, nil, nil},
	} {
		r.tr.Watch(c.kinds, c.zone)
		play()
		if got := events(t, ring); !slices.Equal(got, c.want) {
			t.Errorf("kinds %b: got events\n%s\nwant\n%s", c.kinds, strings.Join(got, "\n"), strings.Join(c.want, "\n"))
		}
	}
	r.tr.Watch(1<<eventNew, nil)
	play()
	if n := len(events(t, ring)); n != 3 {
		t.Errorf("%d events of all zones, want 3", n)
	}
	if n := r.tr.EventsLost(); n != 0 {
		t.Errorf("%d events lost, want 0", n)
	}
}

// An event in a full ring counts as lost and allocates nothing. After the ring is
// read, events are reported again.
func TestEventsLost(t *testing.T) {
	r := newRig(t, 64)
	ring := r.tr.Events()
	r.tr.Watch(AllEvents, nil)
	frame := udpFrame("10.0.0.1:1000", "10.0.0.2:53", 10)
	cycle := func() {
		m, _ := r.send(frame, Request{Commit: true})
		if !r.tr.Flush(m.Ref) {
			t.Fatal("Flush did not end the connection")
		}
	}
	cycles := eventRingBytes / eventBytes
	for range cycles {
		cycle()
	}
	r.tr.Watch(0, nil)
	lost := r.tr.EventsLost()
	if got := len(events(t, ring)); lost == 0 || got+int(lost) != 2*cycles {
		t.Errorf("%d events read and %d lost; want a sum of %d and some lost", got, lost, 2*cycles)
	}
	r.tr.Watch(AllEvents, nil)
	cycle()
	if got := events(t, ring); len(got) != 2 || !strings.HasPrefix(got[0], "new udp") || !strings.HasPrefix(got[1], "destroy flush udp") {
		t.Errorf("events after reading the ring: %q; want new and destroy", got)
	}
	r.tr.lock()
	defer r.tr.unlock()
	if n := testing.AllocsPerRun(100, func() { r.tr.emitEvent(0, eventNew, 0) }); n != 0 {
		t.Errorf("%v allocations for each event, want 0", n)
	}
}

func FuzzParseEvent(f *testing.F) {
	f.Add(make([]byte, eventBytes))
	f.Add(make([]byte, eventLongBytes))
	f.Fuzz(func(t *testing.T, msg []byte) {
		if e, err := ParseEvent(msg); err == nil {
			e.Entry.AppendTo(nil, FormatOptions{More: true, Statistics: true})
		}
	})
}

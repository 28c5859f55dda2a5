// SPDX-License-Identifier: Apache-2.0

package vhost_test

import (
	"slices"
	"strings"
	"testing"

	"weft/vhost"
	"weft/vhost/vhosttest"
)

// pairs returns a session with n queue pairs, and a guest that uses all of them.
func pairs(t *testing.T, n int) (*rig, vhost.Config, *vhosttest.Guest) {
	t.Helper()
	r := &rig{engine: &vhosttest.Engine{}, path: t.TempDir() + "/vhost.sock", log: &lines{}}
	config := r.config(false)
	config.Queues = n
	var err error
	if r.Session, err = vhost.NewSession(config, r.engine); err != nil {
		t.Fatal(err)
	}
	r.run(t)
	return r, config, guest(t, vhosttest.Options{Features: features, Pairs: n, Num: 16, BufLen: 1024})
}

func numbers(parts []vhost.Part) (list []int) {
	for i := range parts {
		list = append(list, parts[i].Number)
		parts[i].Close()
	}
	return list
}

// TestMostQueuePairs: a guest with 128 queue pairs passes frames. Another control process takes its
// session over. After a change of one ring, only one part of the state is out of date.
func TestMostQueuePairs(t *testing.T) {
	r, config, g := pairs(t, vhost.MaxQueuePairs)
	f := r.attach(t, g)
	eventually(t, "all rings enabled", func() bool { return r.device() != nil && len(r.device().Tx()) == vhost.MaxQueuePairs })
	r.echo(t, g, 1)
	if got := numbers(r.Changes()); !slices.Equal(got, []int{7, 6, 5, 4, 3, 2, 1, 0}) {
		t.Errorf("parts %v of a new session, expected all, part 0 last", got)
	}
	last := g.Rx[vhost.MaxQueuePairs-1].Vring().Index
	event := newEvent(t)
	if err := f.Send(vhosttest.SetVringErr, vhosttest.Version, vhosttest.Number(uint64(last)), event); err != nil {
		t.Fatal(err)
	}
	if _, err := f.U64(vhosttest.GetQueueNum, nil); err != nil { // the answer shows that it was handled
		t.Fatal(err)
	}
	if got := numbers(r.Changes()); !slices.Equal(got, []int{7}) {
		t.Errorf("parts %v after a change of ring %d, expected part 7", got, last)
	}

	parts := r.Snapshot()
	for _, p := range parts {
		if len(p.FDs) > 253 { // the engine's limit for one message
			t.Errorf("part %d has %d descriptors", p.Number, len(p.FDs))
		}
	}
	r.cancel()
	<-r.ended
	s, err := vhost.Restore(config, r.engine, parts)
	if err != nil {
		t.Fatal(err)
	}
	r.Session = s
	r.run(t)
	if st := r.Status(); !st.Connected || !st.Running || len(st.Vrings) != 2*vhost.MaxQueuePairs {
		t.Fatalf("restored: connected %v, running %v, %d vrings", st.Connected, st.Running, len(st.Vrings))
	}
	r.echo(t, g, 2)
	base, err := f.Stop(g.Tx[0])
	if err != nil || base != g.Tx[0].Start()+2 {
		t.Fatalf("stopped at %d, %v", base, err)
	}
	f.Close()
	eventually(t, "disconnection", func() bool { return !r.Status().Connected })
	if got := r.Changes(); len(got) != 8 || got[0].Number != 0 {
		t.Errorf("parts %v after the disconnection, expected part 0 first", numbers(got))
	} else {
		numbers(got)
	}
}

// TestPartsRefused: Restore refuses parts that do not form a state, and closes their descriptors.
// Without a connection, only part 0 counts.
func TestPartsRefused(t *testing.T) {
	r, config, g := pairs(t, 40)
	f := r.attach(t, g)
	before := openFiles(t)
	for want, change := range map[string]func([]vhost.Part) []vhost.Part{
		"2 of 3 parts":          func(p []vhost.Part) []vhost.Part { p[0].Close(); return p[1:] },
		"part 1: 16 vrings":     func(p []vhost.Part) []vhost.Part { p[1].Blob = p[0].Blob; return p },
		"part 2: unexpected":    func(p []vhost.Part) []vhost.Part { p[0].Blob = nil; return p },
		"part 1: descriptor":    func(p []vhost.Part) []vhost.Part { p[1].FDs, p[0].FDs = nil, append(p[0].FDs, p[1].FDs...); return p },
		"32 vrings, expected 2": func(p []vhost.Part) []vhost.Part { config.Queues = 1; return p },
	} {
		whole := config
		_, err := vhost.Restore(config, r.engine, change(r.Snapshot()))
		if config = whole; err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, expected it to say %q", err, want)
		}
	}
	if n := openFiles(t); n != before {
		t.Errorf("%d descriptors open, %d before", n, before)
	}
	f.Close()
	eventually(t, "disconnection", func() bool { return !r.Status().Connected })
	parts := r.Snapshot()
	numbers(parts[1:])
	r.cancel()
	<-r.ended
	s, err := vhost.Restore(config, r.engine, parts[:1])
	if err != nil {
		t.Fatal(err)
	}
	s.Close()
}

// The state of a device with few queue pairs is one part, which earlier versions can read, too.
func TestOnePart(t *testing.T) {
	for n, want := range map[int]int{1: 1, 16: 1, 17: 2, 32: 2, 33: 3, vhost.MaxQueuePairs: 8} {
		if got := vhost.Parts(n); got != want {
			t.Errorf("%d pairs: %d parts, expected %d", n, got, want)
		}
	}
}

package control

import (
	"errors"
	"fmt"
	"testing"
)

// What normal has learnt is listed, and once it was flushed no megaflow goes by it.
func TestMACs(t *testing.T) {
	f := newFakes(t)
	f.vxlanPorts(2)
	f.add("actions=normal")
	w := f.worker()
	a, b := udpKey(1, 1, 2, 9), udpKey(2, 2, 1, 9)
	w.frame(b, 100)
	f.settle()
	w.frame(a, 100)
	f.settle()
	text := func() (s string) {
		for _, m := range f.d.listMACs() {
			s += fmt.Sprintf("%s/%d vlan %d vni %d %s; ", m.Port, m.PortNumber, m.VLAN, *m.VNI, m.MAC)
			if m.AgeS < 0 || m.AgeS > 100 {
				t.Errorf("%s was seen %v s ago", m.MAC, m.AgeS)
			}
		}
		return s
	}
	known := func() (ok bool) {
		w.on(func() { _, ok = w.lookup(&a) })
		return ok
	}
	if got, want := text(), "p1/1 vlan 0 vni 1 02:00:00:00:00:01; p2/2 vlan 0 vni 1 02:00:00:00:00:02; "; got != want {
		t.Errorf("learnt %q, want %q", got, want)
	}
	if !known() {
		t.Fatal("no megaflow for a known address")
	}
	var input *InputError
	if _, err := f.d.flushMACs("p9"); !errors.As(err, &input) {
		t.Errorf("a port that is not there: %v", err)
	}
	if n, err := f.d.flushMACs("p2"); err != nil || n.Flushed != 1 || known() {
		t.Errorf("%d flushed, %v; a megaflow goes by it: %v", n.Flushed, err, known())
	}
	if got, want := text(), "p1/1 vlan 0 vni 1 02:00:00:00:00:01; "; got != want {
		t.Errorf("left %q, want %q", got, want)
	}
	if n, err := f.d.flushMACs(""); err != nil || n.Flushed != 1 || text() != "" {
		t.Errorf("%d flushed, %v, left %q", n.Flushed, err, text())
	}
}

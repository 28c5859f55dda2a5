// SPDX-License-Identifier: Apache-2.0

package macs_test

import (
	"errors"
	"fmt"
	"testing"

	"weft/control/pipeline/pipelinetest"
	"weft/control/usererr"
	"weft/control/workers/workertest"
)

// After a flush, no megaflow uses the flushed addresses.
func TestMACs(t *testing.T) {
	f := pipelinetest.New(t)
	f.VXLANPorts(2)
	f.Add("actions=normal")
	w := f.Worker()
	a, b := workertest.UDPKey(1, 1, 2, 9), workertest.UDPKey(2, 2, 1, 9)
	w.Frame(b, 100)
	f.Settle()
	w.Frame(a, 100)
	f.Settle()
	text := func() (s string) {
		for _, m := range f.MACs.List(0) {
			s += fmt.Sprintf("%s/%d vlan %d vni %d %s; ", m.Port, m.PortNumber, m.VLAN, *m.VNI, m.MAC)
			if m.AgeS < 0 || m.AgeS > 100 {
				t.Errorf("%s was seen %v s ago", m.MAC, m.AgeS)
			}
		}
		return s
	}
	known := func() (ok bool) {
		w.On(func() { _, ok = w.Lookup(&a) })
		return ok
	}
	if got, want := text(), "p1/1 vlan 0 vni 1 02:00:00:00:00:01; p2/2 vlan 0 vni 1 02:00:00:00:00:02; "; got != want {
		t.Errorf("learned %q, want %q", got, want)
	}
	if !known() {
		t.Fatal("no megaflow for a known address")
	}
	var input *usererr.Error
	if _, err := f.MACs.Flush(0, "p9"); !errors.As(err, &input) {
		t.Errorf("flush of a port that does not exist: %v", err)
	}
	if n, err := f.MACs.Flush(0, "p2"); err != nil || n.Flushed != 1 || known() {
		t.Errorf("%d addresses flushed, %v; a megaflow still uses one: %v", n.Flushed, err, known())
	}
	if got, want := text(), "p1/1 vlan 0 vni 1 02:00:00:00:00:01; "; got != want {
		t.Errorf("left %q, want %q", got, want)
	}
	if n, err := f.MACs.Flush(0, ""); err != nil || n.Flushed != 1 || text() != "" {
		t.Errorf("%d flushed, %v, left %q", n.Flushed, err, text())
	}
}

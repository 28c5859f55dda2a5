// SPDX-License-Identifier: Apache-2.0

package pipeline

import (
	"testing"

	"weft/flowtable"
	"weft/internal/waitfor"
	"weft/openflow"
)

func (f *rig) guests(n int) {
	f.vxlanPorts(n)
	f.change.Lock()
	defer f.change.Unlock()
	for i := range f.infos {
		f.infos[i] = openflow.PortInfo{No: f.infos[i].No, Name: f.infos[i].Name, VNI: 1, InVNI: true}
	}
	f.setView()
	f.p.PortsChanged()
}

func (f *rig) outputs(key flowtable.Key) (ports []uint32) {
	f.t.Helper()
	f.worker().Frame(key, 100)
	f.settle()
	f.worker().On(func() {
		slot, ok := f.worker().Lookup(&key)
		if !ok {
			return
		}
		_, _, actions, _ := f.p.workers.Shared()[0].Cache.Read(slot)
		for _, a := range actions {
			if a.Op == flowtable.OpOutput {
				ports = append(ports, a.U32)
			}
		}
	})
	return ports
}

func (f *rig) learned() {
	f.t.Helper()
	f.guests(3)
	f.add("actions=normal")
	f.outputs(udpKey(2, 2, 1, 9))
	if ports := f.outputs(udpKey(1, 1, 2, 9)); len(ports) != 1 || ports[0] != 2 {
		f.t.Fatalf("before the restart: sent to ports %v, want 2", ports)
	}
}

// A killed control process's learned addresses survive, even without megaflows.
func TestLearnedAddressesSurviveAKill(t *testing.T) {
	f := newRig(t)
	f.learned()
	if err := f.p.SaveMACs(); err != nil {
		t.Fatal(err)
	}
	f.change.Lock()
	f.p.evict(f.p.megaflows.list()) // like guests that were silent for a while
	f.change.Unlock()
	f.die()
	f.begin()
	if ports := f.outputs(udpKey(1, 1, 2, 10)); len(ports) != 1 || ports[0] != 2 {
		t.Errorf("sent to ports %v, want 2 only", ports)
	}
}

// Addresses learned after the last save come from megaflows, which stay.
func TestUnsavedAddressesComeFromMegaflows(t *testing.T) {
	f := newRig(t)
	f.learned()
	key := udpKey(1, 1, 2, 9)
	f.outputs(udpKey(2, 2, 1, 9))
	waitfor.True(t, "both directions have a megaflow", func() bool { return len(f.outputs(udpKey(2, 2, 1, 9))) == 1 && f.p.megaflows.len() == 2 })
	f.die()
	f.begin()
	f.worker().On(func() {
		if _, ok := f.worker().Lookup(&key); !ok {
			t.Error("the megaflow between learned addresses was removed")
		}
	})
	for _, key := range []flowtable.Key{udpKey(1, 1, 2, 10), udpKey(2, 2, 1, 10)} {
		if ports := f.outputs(key); len(ports) != 1 || ports[0] == 3 {
			t.Errorf("sent to ports %v, want the other guest's only", ports)
		}
	}
}

// Addresses of renamed or moved ports and flushed addresses are not restored. Any
// file content is safe.
func TestForeignAddressesAreNotRestored(t *testing.T) {
	for name, change := range map[string]func(f *rig){
		"other name": func(f *rig) { f.infos[1].Name = "q" },
		"other VNI":  func(f *rig) { f.infos[1].VNI = 2 },
		"no VNI":     func(f *rig) { f.infos[1].InVNI = false },
		"flushed": func(f *rig) {
			if _, err := f.p.FlushMACs("p2"); err != nil {
				t.Fatal(err)
			}
		},
		"garbage": func(f *rig) {
			if err := f.store.SaveAddresses([]byte("\x05garbage")); err != nil {
				t.Fatal(err)
			}
		},
	} {
		f := newRig(t)
		f.learned()
		f.change.Lock()
		f.p.evict(f.p.megaflows.list())
		f.change.Unlock()
		if err := f.p.SaveMACs(); err != nil {
			t.Fatal(err)
		}
		change(f)
		f.die()
		f.begin()
		for _, m := range f.p.ListMACs() {
			if m.PortNumber == 2 {
				t.Errorf("%s: restored %+v", name, m)
			}
		}
	}
}

// SPDX-License-Identifier: Apache-2.0

package macs_test

import (
	"testing"

	"weft/control/pipeline/pipelinetest"
	"weft/control/workers/workertest"
	"weft/flowtable"
	"weft/internal/waitfor"
	"weft/openflow"
	"weft/openflow/xlate"
)

type rig struct{ *pipelinetest.Rig }

func newRig(t *testing.T) *rig { return &rig{pipelinetest.New(t)} }

// flushMegaflows removes all megaflows. The same happens if all guests are silent for a while.
func (f *rig) flushMegaflows() {
	f.T.Helper()
	f.Apply(openflow.Delete, "table=255")
	f.Add("actions=normal")
	if n := f.P.Counts().Megaflows; n != 0 {
		f.T.Fatalf("%d megaflows left", n)
	}
}

func (f *rig) guests(n int) {
	f.VXLANPorts(n)
	tx := f.Configuration.Begin()
	defer tx.Commit()
	for i := range f.Infos {
		f.Infos[i] = xlate.PortInfo{No: f.Infos[i].No, Name: f.Infos[i].Name, VNI: 1, InVNI: true}
	}
	f.SetView(tx)
	f.P.PortsChanged(tx)
}

func (f *rig) outputs(key flowtable.Key) (ports []uint32) {
	f.T.Helper()
	f.Worker().Frame(key, 100)
	f.Settle()
	f.Worker().On(func() {
		slot, ok := f.Worker().Lookup(&key)
		if !ok {
			return
		}
		_, _, actions, _ := f.P.Workers().Shared()[0].Cache.Read(slot)
		for _, a := range actions {
			if a.Op == flowtable.OpOutput {
				ports = append(ports, a.U32)
			}
		}
	})
	return ports
}

func (f *rig) learned() {
	f.T.Helper()
	f.guests(3)
	f.Add("actions=normal")
	f.outputs(workertest.UDPKey(2, 2, 1, 9))
	if ports := f.outputs(workertest.UDPKey(1, 1, 2, 9)); len(ports) != 1 || ports[0] != 2 {
		f.T.Fatalf("before the restart: sent to ports %v, want 2", ports)
	}
}

// The learned addresses of a killed control process survive, even if no megaflow uses them.
func TestLearnedAddressesSurviveAKill(t *testing.T) {
	f := newRig(t)
	f.learned()
	if err := f.MACs.Save(); err != nil {
		t.Fatal(err)
	}
	f.flushMegaflows()
	f.Die()
	f.Begin()
	if ports := f.outputs(workertest.UDPKey(1, 1, 2, 10)); len(ports) != 1 || ports[0] != 2 {
		t.Errorf("sent to ports %v, want 2 only", ports)
	}
}

// Addresses that were learned after the last save are restored from the megaflows, which outlive
// control.
func TestUnsavedAddressesComeFromMegaflows(t *testing.T) {
	f := newRig(t)
	f.learned()
	key := workertest.UDPKey(1, 1, 2, 9)
	f.outputs(workertest.UDPKey(2, 2, 1, 9))
	waitfor.True(t, "both directions have a megaflow", func() bool {
		return len(f.outputs(workertest.UDPKey(2, 2, 1, 9))) == 1 && f.P.Counts().Megaflows == 2
	})
	f.Die()
	f.Begin()
	f.Worker().On(func() {
		if _, ok := f.Worker().Lookup(&key); !ok {
			t.Error("the megaflow between learned addresses was removed")
		}
	})
	for _, key := range []flowtable.Key{workertest.UDPKey(1, 1, 2, 10), workertest.UDPKey(2, 2, 1, 10)} {
		if ports := f.outputs(key); len(ports) != 1 || ports[0] == 3 {
			t.Errorf("sent to ports %v, want the other guest's only", ports)
		}
	}
}

// Load does not restore flushed addresses, or addresses of renamed or moved ports. It
// survives any file content.
func TestForeignAddressesAreNotRestored(t *testing.T) {
	for name, change := range map[string]func(f *rig){
		"other name": func(f *rig) { f.Infos[1].Name = "q" },
		"other VNI":  func(f *rig) { f.Infos[1].VNI = 2 },
		"no VNI":     func(f *rig) { f.Infos[1].InVNI = false },
		"flushed": func(f *rig) {
			if _, err := f.MACs.Flush(0, "p2"); err != nil {
				t.Fatal(err)
			}
		},
		"garbage": func(f *rig) {
			if err := f.Disk.SaveAddresses([]byte("\x05garbage")); err != nil {
				t.Fatal(err)
			}
		},
	} {
		f := newRig(t)
		f.learned()
		f.flushMegaflows()
		if err := f.MACs.Save(); err != nil {
			t.Fatal(err)
		}
		change(f)
		f.Die()
		f.Begin()
		for _, m := range f.MACs.List(0) {
			if m.PortNumber == 2 {
				t.Errorf("%s: restored %+v", name, m)
			}
		}
	}
}

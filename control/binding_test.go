// SPDX-License-Identifier: Apache-2.0

package control

import (
	"path/filepath"
	"strings"
	"testing"

	"weft/api"
	"weft/control/workers/workertest"
	"weft/flowtable"
	"weft/packet"
)

func (f *fakes) bound(ports map[string]string) {
	f.t.Helper()
	for name, options := range ports {
		words := []string{"type=vhost-user", "path=" + filepath.Join(f.t.TempDir(), name)}
		if _, err := f.d.ports.Add(name, append(words, strings.Split(options, ";")...)); err != nil {
			f.t.Fatal(err)
		}
	}
}

func (f *fakes) actionsOf(key *flowtable.Key) (actions []flowtable.Action) {
	f.worker().On(func() {
		slot, ok := f.worker().Lookup(key)
		if ok {
			_, _, actions, _ = f.worker().Shared.Cache.Read(slot)
		}
	})
	return actions
}

// A bound port drops frames from other addresses, and counts them under a separate drop
// reason. The binding survives a restart of control.
func TestSpoofedFramesAreDropped(t *testing.T) {
	f := newFakes(t)
	const addresses = "addresses=02:00:00:00:00:01 10.0.0.1 fd00::/64,02:00:00:00:00:02"
	f.bound(map[string]string{"g": addresses})
	f.add("priority=5,udp,actions=in_port", "priority=1,actions=drop")
	no := f.port("g").Number
	verdict := func(src uint32) (drop packet.DropReason) {
		key := workertest.UDPKey(no, src, 9, 9)
		f.worker().Frame(key, 100)
		f.settle()
		if a := f.actionsOf(&key); len(a) != 1 {
			t.Errorf("host %d: %v", src, a)
		} else if a[0].Op == flowtable.OpDrop {
			drop = packet.DropReason(a[0].U32)
		}
		return drop
	}
	check := func(moment string) {
		t.Helper()
		for src, want := range map[uint32]packet.DropReason{1: 0, 2: 0, 3: packet.DropSpoofed} {
			if got := verdict(src); got != want {
				t.Errorf("%s, host %d: %v, want %v", moment, src, got, want)
			}
		}
		tr, err := f.trace("in_port=g,udp,dl_src=02:00:00:00:00:01,nw_src=10.0.0.7", "")
		if err != nil || tr.Drop != "spoofed" || len(tr.Steps) != 1 || tr.Steps[0].Kind != api.StepNote ||
			!strings.Contains(tr.Steps[0].Note, "nw_src=10.0.0.7, which g may not send") {
			t.Errorf("%s: trace %+v, %v", moment, tr, err)
		}
		ports, err := f.d.ports.List("g")
		if err != nil || "addresses="+ports[0].Options["addresses"] != addresses {
			t.Errorf("%s: %+v, %v", moment, ports, err)
		}
	}
	check("at first")
	f.die()
	f.begin()
	check("after control's death")
}

// The addresses of a bound port are in the address table before the port sends a frame. Other ports do
// not learn these addresses. Deleting the port removes them.
func TestDeclaredAddressesAreListed(t *testing.T) {
	f := newFakes(t)
	f.vxlanPorts(2)
	f.add("actions=normal")
	w := f.worker()
	w.Frame(workertest.UDPKey(1, 5, 9, 9), 100)
	f.settle()
	f.bound(map[string]string{"g": "vni=1;mac=02:00:00:00:00:05"})
	list := f.d.macs.List(0)
	if len(list) != 1 || !list[0].Declared || list[0].Port != "g" || *list[0].VNI != 1 {
		t.Errorf("%+v", list)
	}
	w.Frame(workertest.UDPKey(1, 5, 9, 10), 100)
	w.Frame(workertest.UDPKey(2, 7, 5, 9), 100)
	f.settle()
	key := workertest.UDPKey(2, 7, 5, 9)
	if a := f.actionsOf(&key); len(a) != 1 || a[0].U32 != f.port("g").Number {
		t.Errorf("a frame for the declared address: %+v", a)
	}
	refused := uint64(0)
	rows, err := f.d.rest.LimitsOf("p1")
	for _, r := range rows {
		if r.Name == "mac_moves" {
			refused = r.Refused
		}
	}
	if err != nil || refused == 0 {
		t.Errorf("no refusal: %+v, %v", rows, err)
	}
	if err := f.d.ports.Delete("g"); err != nil {
		t.Fatal(err)
	}
	w.Frame(workertest.UDPKey(1, 5, 9, 11), 100)
	f.settle()
	for _, m := range f.d.macs.List(0) {
		if m.Declared || m.MAC == "02:00:00:00:00:05" && m.Port != "p1" {
			t.Errorf("after the port is gone: %+v", m)
		}
	}
}

// When a bound port is added, megaflows that match all ports are revalidated.
func TestBindingRevalidates(t *testing.T) {
	f := newFakes(t)
	f.vxlanPorts(1)
	f.add("actions=drop")
	key := workertest.UDPKey(1, 1, 2, 9)
	f.worker().Frame(key, 100)
	f.settle()
	f.bound(map[string]string{"g": "mac=02:00:00:00:00:05"})
	f.worker().On(func() {
		if _, ok := f.worker().Lookup(&key); ok {
			t.Error("a megaflow that also matches the bound port's frames is still installed")
		}
	})
}

func TestBindingIsCheckedWhole(t *testing.T) {
	f := newFakes(t)
	_, err := f.d.ports.Add("g", []string{"type=vhost-user", "path=" + filepath.Join(t.TempDir(), "g"),
		"mac=02:00:00:00:00:05", "addresses=02:00:00:00:00:05 10.0.0.1"})
	if err == nil || !strings.Contains(err.Error(), "each MAC address once, mac= included") {
		t.Error(err)
	}
}

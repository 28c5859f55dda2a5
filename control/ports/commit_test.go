// SPDX-License-Identifier: Apache-2.0

package ports

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"weft/control/change"
	"weft/control/store"
	"weft/engine"
)

// names returns the sorted names of the ports in the set, and of the saved ports.
func (ps *Ports) names(t *testing.T) (present, saved string) {
	t.Helper()
	state, err := ps.store.(*store.Store).Load()
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, p := range state.Ports {
		names = append(names, p.Name)
	}
	slices.Sort(names)
	return strings.Join(slices.Sorted(maps.Keys(ps.numbersNow())), " "), strings.Join(names, " ")
}

func checkNames(t *testing.T, ps *Ports, wantPresent, wantSaved string) {
	t.Helper()
	if present, saved := ps.names(t); present != wantPresent || saved != wantSaved {
		t.Errorf("the set has %q, the state file %q; want %q and %q", present, saved, wantPresent, wantSaved)
	}
}

// Many changes of ports in one transaction make one view. A port that fails does not keep the others
// from being added.
func TestManyPortsInOneTransaction(t *testing.T) {
	ports, configuration := newTestPorts(t)
	var views countedViews
	ports.declared = &views
	refused := 0
	err := configuration.Update(func(tx *change.Tx) error {
		for i := range 40 {
			fail := func(err error) { t.Errorf("port %d: %v", i, err) }
			words := []string{"type=patch", fmt.Sprintf("peer=p%d", i^1)}
			if i%10 == 7 {
				words = append(words, "nonsense=1")
			}
			if err := ports.AddIn(tx, fmt.Sprintf("p%d", i), words, fail); err != nil {
				refused++
			}
		}
		if err := ports.ModifyIn(tx, "p0", []string{"tag=5"}, nil); err != nil {
			t.Error(err)
		}
		return ports.DeleteIn(tx, "p39")
	})
	if err != nil || refused != 4 || views != 1 {
		t.Errorf("error %v, %d ports were refused, %d views", err, refused, views)
	}
	present, saved := ports.names(t)
	if n := len(strings.Fields(present)); n != 35 || present != saved {
		t.Errorf("%d ports %q, saved %q", n, present, saved)
	}
	if p, err := ports.List("p0"); err != nil || p[0].Options["tag"] != "5" || p[0].State != StateUp {
		t.Errorf("p0: %+v, %v", p, err)
	}
}

// refusing is an engine client whose Attach refuses ports with names that begin with "bad".
type refusing struct{ noEngine }

func (e refusing) Client() Client { return e }

func (refusing) Attach(a engine.Attach, _ []int) error {
	if strings.HasPrefix(a.Name, "bad") {
		return errors.New("no room")
	}
	return nil
}

// attaching is the driver of a patch port that asks the engine client whether it may be attached.
type attaching struct {
	portDriver
	context portContext
	closed  *int
}

func (d *attaching) attach(bool) error { return d.context.attach(nil, nil, false) }
func (d *attaching) close()            { *d.closed++ }

// If a new port cannot be attached, it leaves the set, and the other ports of the transaction stay.
func TestPortThatIsNotAttached(t *testing.T) {
	ports, configuration := newTestPorts(t)
	ports.engine = refusing{}
	patch, closed := portKinds[kindPatch], 0
	defer func() { portKinds[kindPatch] = patch }()
	portKinds[kindPatch] = portKind{kind: patch.kind, options: patch.options,
		make: func(c portContext) portDriver { return &attaching{patch.make(c), c, &closed} }}
	var failure error
	err := configuration.Update(func(tx *change.Tx) error {
		for _, name := range []string{"a", "bad", "c"} {
			if err := ports.AddIn(tx, name, []string{"type=patch", "peer=x"}, func(err error) { failure = err }); err != nil {
				t.Error(err)
			}
		}
		// In the end the port is not added, so the state file must not get this change of it.
		return ports.ModifyIn(tx, "bad", []string{"tag=3"}, func(error) {})
	})
	if err != nil || failure == nil || failure.Error() != "no room" || closed != 1 {
		t.Errorf("error %v, late error %v, %d drivers closed", err, failure, closed)
	}
	checkNames(t, ports, "a c", "a c")
	if _, err := ports.Add("bad2", []string{"type=patch", "peer=x"}); err == nil || err.Error() != "no room" {
		t.Errorf("alone: %v", err)
	}
	checkNames(t, ports, "a c", "a c")
}

// unsaving is a state file that refuses writes while "broken" is true.
type unsaving struct {
	*store.Store
	broken bool
}

func (s *unsaving) SavePort(tx *change.Tx, p store.Port) {
	if !s.refuses(tx) {
		s.Store.SavePort(tx, p)
	}
}

func (s *unsaving) DeletePort(tx *change.Tx, number uint32) {
	if !s.refuses(tx) {
		s.Store.DeletePort(tx, number)
	}
}

func (s *unsaving) refuses(tx *change.Tx) bool {
	if s.broken {
		tx.At(change.Save, s, func() error { return errors.New("the disk is full") })
	}
	return s.broken
}

// If the changes of ports cannot be saved, the set of ports becomes what it was before.
func TestUnsavedPortsAreTakenBack(t *testing.T) {
	ports, configuration := newTestPorts(t)
	disk := &unsaving{Store: ports.store.(*store.Store)}
	ports.store = disk
	for _, name := range []string{"gone", "other"} {
		if _, err := ports.Add(name, []string{"type=patch", "peer=x"}); err != nil {
			t.Fatal(err)
		}
	}
	disk.broken = true
	var failures []string
	note := func(change string) func(error) {
		return func(err error) { failures = append(failures, change+": "+err.Error()) }
	}
	err := configuration.Update(func(tx *change.Tx) error {
		return errors.Join(ports.AddIn(tx, "new", []string{"type=patch", "peer=x"}, note("new")),
			ports.ModifyIn(tx, "other", []string{"tag=9"}, note("other")), ports.DeleteIn(tx, "gone"))
	})
	if err == nil || !slices.Equal(failures, []string{"other: the disk is full", "new: the disk is full"}) {
		t.Errorf("error %v, late errors %q", err, failures)
	}
	if present := slices.Sorted(maps.Keys(ports.numbersNow())); !slices.Equal(present, []string{"gone", "other"}) {
		t.Errorf("the set has %v", present)
	}
	if p, err := ports.List("other"); err != nil || p[0].Options["tag"] != "" {
		t.Errorf("other: %+v, %v", p, err)
	}
	if v := ports.pipeline.View(); v.NoPort("gone") == nil || len(v.Ports()) != 2 {
		t.Errorf("the view has %d ports", len(v.Ports()))
	}
	if err := ports.Delete("gone"); err == nil {
		t.Error("del-port succeeded")
	}
	disk.broken = false
	if err := ports.Delete("gone"); err != nil {
		t.Error(err)
	}
}

// A transaction may delete a port and add it again. The port keeps its number, and the state file
// changes once.
func TestPortIsAddedAgainInOneTransaction(t *testing.T) {
	ports, configuration := newTestPorts(t)
	for _, name := range []string{"a", "b"} {
		if _, err := ports.Add(name, []string{"type=patch", "peer=x"}); err != nil {
			t.Fatal(err)
		}
	}
	was, views := ports.numbersNow(), countedViews(0)
	ports.declared = &views
	err := configuration.Update(func(tx *change.Tx) error {
		return errors.Join(ports.DeleteIn(tx, "a"), ports.DeleteIn(tx, "b"),
			ports.AddIn(tx, "a", []string{"type=patch", "peer=y"}, nil), ports.AddIn(tx, "b", []string{"type=patch", "peer=y"}, nil))
	})
	if err != nil || views != 2 || !maps.Equal(ports.numbersNow(), was) {
		t.Errorf("error %v, %d views, numbers %v, before %v", err, views, ports.numbersNow(), was)
	}
	checkNames(t, ports, "a b", "a b")
	if p, _ := ports.List("a"); p[0].Options["peer"] != "y" {
		t.Errorf("a: %+v", p[0])
	}
}

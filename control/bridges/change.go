// SPDX-License-Identifier: Apache-2.0

package bridges

import (
	"regexp"
	"slices"
	"strconv"

	"weft/api"
	"weft/control/change"
	"weft/control/pipeline"
	"weft/control/store"
	"weft/control/tables"
	"weft/control/usererr"
	"weft/openflow/ofproto"
)

// bridgeName matches valid names of bridges. Each is also a valid name of a network device, because the
// device of the port LOCAL may have the bridge's name.
var bridgeName = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9_.-]{0,14}$`)

// maxBridgeName is the length of the longest name of a bridge (IFNAMSIZ less 1).
const maxBridgeName = 15

// Restore makes the saved bridges, before the ports and flows are loaded. A bridge whose listeners fail
// gets no OpenFlow connections.
func (bs *Bridges) Restore(tx *change.Tx, saved []store.Bridge) error {
	for _, s := range saved {
		if s.Number == 0 {
			bs.restoreFirst(&s)
			continue
		}
		if s.Name == bs.setup.Name {
			return usererr.Errorf("name %s: a bridge of add-br has this name; expected another", s.Name)
		}
		c, err := bs.listenFor(&s)
		if err != nil {
			bs.setup.Log.Error("a bridge has no OpenFlow connections", "bridge", s.Name, "error", err)
			c = connections{}
		}
		bs.enter(tx, &s, &c)
	}
	return nil
}

// Change runs fn in a transaction that may change bridges with AddIn, ModifyIn and DeleteIn. After the
// transaction it stops the connections of deleted bridges.
func (bs *Bridges) Change(fn func(tx *change.Tx) error) error {
	bs.changing.Lock()
	defer bs.changing.Unlock()
	var deleted []*Bridge
	err := bs.setup.Configuration.Update(func(tx *change.Tx) error {
		list := change.State[[]*Bridge](tx, bs)
		tx.At(change.Tell, &deleted, func() error { deleted = *list; return nil })
		return fn(tx)
	})
	for _, b := range deleted {
		b.stop() // after the configuration lock is released, because the bridge's connections take it
		b.done.Wait()
		bs.setup.Frames.Detach(b.Pipeline)
		bs.setup.Log.Info("bridge deleted", "bridge", b.Name)
	}
	return err
}

// Add adds a bridge. On an error nothing has changed.
func (bs *Bridges) Add(add api.AddBridge) (added api.Bridge, err error) {
	err = bs.Change(func(tx *change.Tx) (err error) { added, err = bs.AddIn(tx, add); return err })
	return added, err
}

// AddIn adds a bridge like Add, in a transaction that Change has begun.
func (bs *Bridges) AddIn(tx *change.Tx, add api.AddBridge) (api.Bridge, error) {
	s, err := checkBridge(&add)
	if err != nil {
		return api.Bridge{}, err
	}
	if old := bs.Named(add.Name); old != nil {
		if add.MayExist {
			return bs.Describe(old), nil
		}
		return api.Bridge{}, usererr.Errorf("%s: the bridge exists; expected another name, or --may-exist", add.Name)
	}
	for s.Number = 1; bs.Numbered(s.Number) != nil; {
		if s.Number++; s.Number == ofproto.MaxBridges {
			return api.Bridge{}, usererr.Errorf("%s: expected at most %d bridges", add.Name, ofproto.MaxBridges)
		}
	}
	c, err := bs.listenFor(&s)
	if err != nil {
		return api.Bridge{}, err
	}
	c.fresh, c.bare = true, add.Bare
	b := bs.enter(tx, &s, &c)
	bs.setup.Pipeline.PortsChanged(tx) // the first bridge added makes megaflows match in_port
	bs.setup.Store.SaveBridge(tx, s)
	added := true
	tx.Undo(func(error) {
		added = false
		bs.remove(b)
		for _, l := range c.listeners {
			l.Close()
		}
	})
	tx.At(change.Tell, b, func() error {
		if added {
			b.start(bs.running)
			bs.setup.Log.Info("bridge added", "bridge", b.Name, "number", b.Number)
		}
		return nil
	})
	return bs.Describe(b), nil
}

// checkBridge checks a request to add a bridge, and returns its settings in the form of the state file.
func checkBridge(add *api.AddBridge) (s store.Bridge, err error) {
	s = store.Bridge{Name: add.Name, FailMode: add.FailMode, Controllers: add.Controllers}
	if len(add.Name) > maxBridgeName {
		return s, usererr.Errorf("bridge %q: could not open network device: name too long; expected at most %d characters", add.Name, maxBridgeName)
	}
	if !bridgeName.MatchString(add.Name) {
		return s, usererr.Errorf("bridge %q: expected a letter, then up to 14 letters, digits, or any of _ . -", add.Name)
	}
	if add.DatapathID != "" {
		if s.DatapathID, err = strconv.ParseUint(add.DatapathID, 16, 64); err != nil || s.DatapathID == 0 {
			return s, usererr.Errorf("datapath id %s: expected up to 16 hexadecimal digits, not all 0", add.DatapathID)
		}
	}
	return s, checkControllers(add.FailMode, add.Controllers)
}

// Delete deletes a bridge with its ports, flows, groups and meters. If the change cannot be saved, the
// bridge stays.
func (bs *Bridges) Delete(name string) error {
	return bs.Change(func(tx *change.Tx) error { return bs.DeleteIn(tx, name) })
}

// DeleteIn deletes a bridge like Delete, in a transaction that Change has begun.
func (bs *Bridges) DeleteIn(tx *change.Tx, name string) error {
	b := bs.Named(name)
	switch {
	case b == nil:
		return bs.noBridge(name)
	case b.Number == 0:
		return usererr.Errorf("%s: the bridge of weftd --name; expected one of add-br", name)
	}
	bs.setup.Ports.DeleteAll(tx, b.Number)
	bs.setup.Store.DeleteBridge(tx, b.Number, bs.setup.Pipeline.RemoveBridge(tx, b.Pipeline))
	bs.remove(b)
	deleted := change.State[[]*Bridge](tx, bs)
	*deleted = append(*deleted, b)
	tx.Undo(func(error) {
		bs.insert(b)
		*deleted = slices.DeleteFunc(*deleted, func(o *Bridge) bool { return o == b })
	})
	return nil
}

// enter makes a bridge and adds it to the pipeline and to the set.
func (bs *Bridges) enter(tx *change.Tx, s *store.Bridge, c *connections) *Bridge {
	b := &Bridge{Number: s.Number, Name: s.Name, id: s.DatapathID, socket: c.Socket}
	bs.complete(b, bs.setup.Pipeline.AddBridge(tx, s.Number, s.Name), c)
	return b
}

// complete gives a bridge its tables and its OpenFlow service, and adds it to the set. Requests find it
// from then on.
func (bs *Bridges) complete(b *Bridge, p *pipeline.Bridge, c *connections) {
	b.Pipeline, b.Tables = p, tables.New(bs.setup.Configuration, p)
	bs.connect(b, c)
	bs.insert(b)
}

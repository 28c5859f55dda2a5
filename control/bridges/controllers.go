// SPDX-License-Identifier: Apache-2.0

package bridges

import (
	"weft/api"
	"weft/control/change"
	"weft/control/ofconn"
	"weft/control/store"
	"weft/control/usererr"
)

func failMode(standalone bool) string {
	if standalone {
		return api.FailStandalone
	}
	return api.FailSecure
}

// checkControllers checks the fail mode and the controllers in a request or in the state file.
func checkControllers(mode string, targets []string) error {
	if mode != "" && mode != api.FailSecure && mode != api.FailStandalone {
		return usererr.Errorf("fail mode %s: expected %s or %s", mode, api.FailSecure, api.FailStandalone)
	}
	if len(targets) > ofconn.MaxControllers {
		return usererr.Errorf("controllers: expected at most %d", ofconn.MaxControllers)
	}
	for _, text := range targets {
		if _, _, err := ofconn.ParseTarget(text, "tcp", "ssl"); err != nil {
			return usererr.Errorf("controller: %v", err)
		}
	}
	return nil
}

// configured reports whether weftd's command line sets the controllers and the fail mode of the bridge.
// The state file sets those of all other bridges.
func (bs *Bridges) configured(b *Bridge) bool {
	return b.Number == 0 && (len(bs.setup.OpenFlow.Controllers) > 0 || bs.setup.OpenFlow.Standalone)
}

// Modify changes the controllers and the fail mode of a bridge. On an error nothing
// has changed.
func (bs *Bridges) Modify(b *Bridge, mod api.ModBridge) (modified api.Bridge, err error) {
	err = bs.Change(func(tx *change.Tx) (err error) { modified, err = bs.ModifyIn(tx, b, mod); return err })
	return modified, err
}

// ModifyIn changes a bridge like Modify, in a transaction that Change has begun.
func (bs *Bridges) ModifyIn(tx *change.Tx, b *Bridge, mod api.ModBridge) (api.Bridge, error) {
	if bs.configured(b) {
		return api.Bridge{}, usererr.Errorf("%s: weftd's configuration has its controllers; change controller and fail-mode there", b.Name)
	}
	if bs.Numbered(b.Number) != b {
		return api.Bridge{}, bs.noBridge(b.Name) // the bridge was deleted meanwhile
	}
	s := b.saved()
	if mod.FailMode != "" {
		s.FailMode = mod.FailMode
	}
	if mod.Controllers != nil {
		s.Controllers = *mod.Controllers
	}
	if err := bs.follow(tx, b, &s, mod.Bare); err != nil {
		return api.Bridge{}, err
	}
	bs.setup.Log.Info("controllers of a bridge set", "bridge", b.Name, "controllers", s.Controllers, "fail_mode", s.FailMode)
	return bs.Describe(b), nil
}

// saved returns the settings of a bridge in the form of the state file.
func (b *Bridge) saved() store.Bridge {
	f := b.wire.Following()
	return store.Bridge{Number: b.Number, Name: b.Name, DatapathID: b.id, FailMode: failMode(f.Standalone), Controllers: f.Controllers}
}

// follow connects a bridge with the controllers in s, and saves s. If bare is true, a standalone bridge
// without controllers gets no flow of its own.
func (bs *Bridges) follow(tx *change.Tx, b *Bridge, s *store.Bridge, bare bool) error {
	f, err := bs.following(s, bare)
	if err != nil {
		return err
	}
	before := b.wire.Following()
	bs.saveControllers(tx, s)
	b.wire.Follow(f)
	tx.Undo(func(error) { b.wire.Follow(before) })
	return nil
}

// following returns the controllers and the fail mode in s in the form that package ofconn takes.
func (bs *Bridges) following(s *store.Bridge, bare bool) (f ofconn.Following, err error) {
	if err := checkControllers(s.FailMode, s.Controllers); err != nil {
		return f, err
	}
	return ofconn.Following{Controllers: s.Controllers, TLS: bs.loadCertificates, Standalone: s.FailMode == api.FailStandalone, Bare: bare}, bs.checkCertificates(s.Controllers)
}

// saveControllers saves the settings of a bridge. A first bridge without controllers gets no entry in
// the state file, so that a weftd that knows only one bridge can read the file.
func (bs *Bridges) saveControllers(tx *change.Tx, s *store.Bridge) {
	if s.Number == 0 && len(s.Controllers) == 0 && s.FailMode == api.FailSecure {
		bs.setup.Store.DeleteBridgeSettings(tx, 0)
		return
	}
	bs.setup.Store.SaveBridge(tx, *s)
}

// restoreFirst connects the first bridge with its saved controllers, unless weftd's command line sets
// others.
func (bs *Bridges) restoreFirst(s *store.Bridge) {
	b := bs.Numbered(0)
	if bs.configured(b) {
		bs.setup.Log.Warn("weftd's configuration replaces the controllers of set-controller", "bridge", b.Name, "controllers", s.Controllers)
		return
	}
	f, err := bs.following(s, false)
	if err != nil {
		bs.setup.Log.Error("the saved controllers of a bridge cannot be used", "bridge", b.Name, "error", err)
		return
	}
	b.wire.Follow(f)
}

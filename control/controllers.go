// SPDX-License-Identifier: Apache-2.0

package control

import (
	"fmt"

	"weft/api"
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

// checkControllers checks the fail mode and the controllers of a request.
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

// configured reports whether weftd's configuration has the controllers and the fail mode of
// a bridge. The state has the controllers and the fail mode of all other bridges.
func (d *Daemon) configured(b *bridge) bool {
	return b.number == 0 && (len(d.config.OpenFlow.Controllers) > 0 || d.config.OpenFlow.Standalone)
}

// modifyBridge changes the controllers and the fail mode of a bridge. On an error nothing
// has changed.
func (d *Daemon) modifyBridge(b *bridge, mod api.ModBridge) (api.Bridge, error) {
	d.bridging.Lock()
	defer d.bridging.Unlock()
	d.change.Lock() // the state of the first bridge is restored under it
	defer d.change.Unlock()
	if d.configured(b) {
		return api.Bridge{}, usererr.Errorf("%s: weftd's configuration has its controllers; change controller and fail-mode there", b.name)
	}
	if d.bridges.withNumber(b.number) != b {
		return api.Bridge{}, d.noBridge(b.name) // deleted meanwhile
	}
	next := b.wire.Following()
	s := store.Bridge{Number: b.number, Name: b.name, DatapathID: b.id, FailMode: failMode(next.Standalone), Controllers: next.Controllers}
	if mod.FailMode != "" {
		s.FailMode = mod.FailMode
	}
	if mod.Controllers != nil {
		s.Controllers = *mod.Controllers
	}
	if err := d.follow(b, &s, d.saveControllers); err != nil {
		return api.Bridge{}, err
	}
	d.log.Info("controllers of a bridge set", "bridge", b.name, "controllers", s.Controllers, "fail_mode", s.FailMode)
	return d.describeBridge(b), nil
}

// follow makes a bridge follow the controllers in s, after save has saved s.
func (d *Daemon) follow(b *bridge, s *store.Bridge, save func(*store.Bridge) error) error {
	if err := checkControllers(s.FailMode, s.Controllers); err != nil {
		return err
	}
	config, err := openFlowTLS(s.Controllers, d.config.OpenFlow.Certs)
	if err != nil {
		return err
	}
	if err := save(s); err != nil {
		return fmt.Errorf("state: %w", err)
	}
	b.wire.Follow(ofconn.Following{Controllers: s.Controllers, TLS: config, Standalone: s.FailMode == api.FailStandalone})
	return nil
}

// saveControllers saves the settings of a bridge. The state has no entry of a first bridge
// without controllers, so that a weftd that knows only one bridge can read it.
func (d *Daemon) saveControllers(s *store.Bridge) error {
	if s.Number == 0 && len(s.Controllers) == 0 && s.FailMode == api.FailSecure {
		return d.store.DeleteBridge(0)
	}
	return d.store.SaveBridge(*s)
}

// restoreFirst makes the first bridge follow its saved controllers, unless weftd's
// configuration names others.
func (d *Daemon) restoreFirst(s *store.Bridge) {
	b := d.bridges.withNumber(0)
	if d.configured(b) {
		d.log.Warn("weftd's configuration replaces the controllers of set-controller", "bridge", b.name, "controllers", s.Controllers)
		return
	}
	if err := d.follow(b, s, func(*store.Bridge) error { return nil }); err != nil {
		d.log.Error("the saved controllers of a bridge cannot be used", "bridge", b.name, "error", err)
	}
}

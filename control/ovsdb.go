// SPDX-License-Identifier: Apache-2.0

package control

import (
	"path/filepath"

	"weft/api"
	"weft/control/ovsdb"
	"weft/internal/buildinfo"
)

// newOVSDB returns the client of the ovsdb-server in the configuration.
func (d *Daemon) newOVSDB() *ovsdb.Client {
	return ovsdb.New(ovsdb.Setup{Target: d.config.OVSDB, Switch: ruled{d}, RunDir: d.rundir(), Version: buildinfo.Own().String(),
		Log: d.log.With("ovsdb", d.config.OVSDB)})
}

// rundir returns the directory of the OpenFlow sockets, where tools of Open vSwitch look.
func (d *Daemon) rundir() string {
	if d.config.OpenFlow.Socket != "" {
		return filepath.Dir(d.config.OpenFlow.Socket)
	}
	return filepath.Dir(d.config.Socket)
}

// ruled is the switch as the database rules it.
type ruled struct{ d *Daemon }

func (r ruled) Bridges() []api.Bridge { return r.d.bridges.List() }

func (r ruled) AddBridge(add api.AddBridge) error {
	_, err := r.d.bridges.Add(add)
	return err
}

func (r ruled) ModifyBridge(name string, mod api.ModBridge) error {
	b, err := r.d.bridges.Find(name)
	if err != nil {
		return err
	}
	_, err = r.d.bridges.Modify(b, mod)
	return err
}

func (r ruled) DeleteBridge(name string) error { return r.d.bridges.Delete(name) }

func (r ruled) Ports() []api.Port {
	list, _ := r.d.ports.List("") // an error is about a name
	return list
}

func (r ruled) AddPort(name string, words []string) error {
	_, err := r.d.ports.Add(name, words)
	return err
}

func (r ruled) ModifyPort(name string, words []string) error {
	_, err := r.d.ports.Modify(name, words)
	return err
}

func (r ruled) DeletePort(name string) error { return r.d.ports.Delete(name) }

func (r ruled) Connected(bridge string) map[string]bool { return r.d.bridges.Connected(bridge) }

// SPDX-License-Identifier: Apache-2.0

package control

import (
	"path/filepath"

	"weft/api"
	"weft/control/change"
	"weft/control/ofconn"
	"weft/control/ovsdb"
	"weft/control/pipeline"
	"weft/control/ports"
	"weft/internal/buildinfo"
)

// newOVSDB returns the client of the ovsdb-server in the configuration.
func (d *Daemon) newOVSDB() *ovsdb.Client {
	return ovsdb.New(ovsdb.Setup{Target: d.config.OVSDB, Certificates: d.config.OpenFlow.LoadCertificates, Switch: ruled{d}, Tables: ruled{d}, Tracker: d.tracking, LinkChanges: d.kernel.Linked,
		RunDir: d.rundir(), Version: buildinfo.Own().String(),
		Log: d.log.With("ovsdb", d.config.OVSDB)})
}

// rundir returns the directory of the OpenFlow sockets. Tools of Open vSwitch look for sockets there.
func (d *Daemon) rundir() string {
	if d.config.OpenFlow.Socket != "" {
		return filepath.Dir(d.config.OpenFlow.Socket)
	}
	return filepath.Dir(d.config.Socket)
}

// ruled gives package ovsdb access to the bridges, ports and flow tables of the switch, which an OVSDB
// database configures. It implements ovsdb.Switch and ovsdb.FlowTables.
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
	list, _ := r.d.ports.List("") // error ignored: "" stands for all ports
	return list
}

func (r ruled) ChangePorts(fn func(ovsdb.PortChanges)) {
	err := r.d.configuration.Update(func(tx *change.Tx) error {
		fn(portChanges{r.d.ports, tx})
		return nil
	})
	if err != nil {
		r.d.log.Error("ports of the database", "error", err)
	}
}

// portChanges implements ovsdb.PortChanges in the transaction tx.
type portChanges struct {
	ports *ports.Ports
	tx    *change.Tx
}

func (c portChanges) Add(name string, words []string, onFailure func(error)) error {
	return c.ports.AddIn(c.tx, name, words, onFailure)
}

func (c portChanges) Modify(name string, words []string, onFailure func(error)) error {
	return c.ports.ModifyIn(c.tx, name, words, onFailure)
}

func (c portChanges) Prefer(bridge, name string, number uint32) {
	c.ports.PreferIn(c.tx, bridge, name, number)
}

func (c portChanges) Delete(name string) error { return c.ports.DeleteIn(c.tx, name) }

func (r ruled) Controllers(bridge string) map[string]ovsdb.Controller {
	list := map[string]ovsdb.Controller{}
	for target, state := range r.d.bridges.Controllers(bridge) {
		list[target] = ovsdb.Controller(state)
	}
	return list
}

func (r ruled) SetCertificates(files *ovsdb.SSL) {
	r.d.bridges.SetCertificates((*ofconn.Certificates)(files))
}

func (r ruled) Tables(bridge string) ([]api.Table, error) {
	b, err := r.d.bridges.Find(bridge)
	if err != nil {
		return nil, err
	}
	return b.Tables.ListTables(), nil
}

func (r ruled) SetVLANLimit(limit int) {
	r.d.configuration.Do(func(tx *change.Tx) { r.d.pipeline.SetVLANLimit(tx, limit) })
}

func (r ruled) Learning(bridge string) (ovsdb.Learning, error) {
	b, err := r.d.bridges.Find(bridge)
	if err != nil {
		return ovsdb.Learning{}, err
	}
	return ovsdb.Learning(b.Pipeline.Learning()), nil
}

func (r ruled) SetLearning(bridge string, l ovsdb.Learning) error {
	b, err := r.d.bridges.Find(bridge)
	if err != nil {
		return err
	}
	r.d.configuration.Do(func(tx *change.Tx) { b.Pipeline.SetLearning(tx, pipeline.Learning(l)) })
	return nil
}

func (r ruled) ModifyTable(bridge string, mod api.ModTable) error {
	b, err := r.d.bridges.Find(bridge)
	if err != nil {
		return err
	}
	return b.Tables.ModTable(mod)
}

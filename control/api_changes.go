// SPDX-License-Identifier: Apache-2.0

package control

import (
	"net/http"

	"weft/api"
	"weft/control/change"
	"weft/control/usererr"
)

func (d *Daemon) changeRoutes(route router) {
	route("POST /v1/changes", withBody(func(_ *http.Request, list *api.Changes) (any, error) { return struct{}{}, d.changeAll(list.Changes) }))
}

// changeAll makes changes in their order, in one transaction. If a change is refused before a table or
// a setting of connection tracking has changed, nothing changes. Otherwise the changes before the
// refused one are in force.
func (d *Daemon) changeAll(list []api.Change) error {
	var refused, failed error
	err := d.bridges.Change(func(tx *change.Tx) error {
		for i := range list {
			if refused = d.changeOne(tx, &list[i], func(err error) { failed = err }); refused != nil {
				break
			}
		}
		if refused != nil && !tx.Lasting() {
			return refused
		}
		return nil
	})
	if refused != nil {
		return refused
	}
	if err != nil {
		return err
	}
	return failed
}

// changeOne makes one change as a part of the transaction tx. onFailure gets the error if the commit
// cannot attach or save a port.
func (d *Daemon) changeOne(tx *change.Tx, c *api.Change, onFailure func(error)) error {
	switch {
	case c.AddBridge != nil:
		_, err := d.bridges.AddIn(tx, *c.AddBridge)
		return err
	case c.DelBridge != "":
		return d.bridges.DeleteIn(tx, c.DelBridge)
	case c.AddPort != nil:
		return d.ports.AddIn(tx, c.AddPort.Name, c.AddPort.Options, onFailure)
	case c.ModPort != nil:
		return d.ports.ModifyIn(tx, c.Port, c.ModPort.Options, onFailure)
	case c.DelPort != "":
		return d.ports.DeleteIn(tx, c.DelPort)
	case c.Conntrack != nil:
		err := d.tracking.Change(c.Conntrack)
		if err == nil {
			tx.Lasts()
		}
		return err
	}
	b, err := d.bridges.Find(c.Bridge)
	if err != nil {
		return err
	}
	tx.ShowNow() // texts name the ports that have been added
	switch {
	case c.ModBridge != nil:
		_, err = d.bridges.ModifyIn(tx, b, *c.ModBridge)
	case c.TLVs != nil:
		err = b.Tables.ChangeTLVsIn(tx, *c.TLVs)
	case c.Meters != nil:
		_, err = b.Tables.ChangeMetersIn(tx, *c.Meters)
	case c.Groups != nil:
		_, err = b.Tables.ChangeGroupsIn(tx, *c.Groups)
	case c.Table != nil:
		err = b.Tables.ModTableIn(tx, *c.Table)
	case c.Flows != "":
		err = b.Tables.AddFlows(tx, c.Flows)
	default:
		err = usererr.Errorf("changes: expected each with one change")
	}
	return err
}

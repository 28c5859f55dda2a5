// SPDX-License-Identifier: Apache-2.0

package rest

import (
	"net/http"

	"weft/api"
	"weft/control/change"
	"weft/control/usererr"
)

func (h *Handlers) changeRoutes(route router) {
	route("POST /v1/changes", withBody(func(_ *http.Request, list *api.Changes) (any, error) { return struct{}{}, h.ChangeAll(list.Changes) }))
}

// ChangeAll makes the changes of the list in their order, in one transaction. If one is refused, the later
// ones are not made, and the earlier ones are undone. But changes of a table, or of a setting of
// connection tracking, cannot be undone. If there was one, all earlier changes stay in force.
func (h *Handlers) ChangeAll(list []api.Change) error {
	var refused, failed error
	err := h.Bridges.Change(func(tx *change.Tx) error {
		for i := range list {
			if refused = h.changeOne(tx, &list[i], func(err error) { failed = err }); refused != nil {
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

// changeOne makes one change in the transaction tx. If the commit then cannot attach or save a port, it
// calls onFailure with the error.
func (h *Handlers) changeOne(tx *change.Tx, c *api.Change, onFailure func(error)) error {
	switch {
	case c.AddBridge != nil:
		_, err := h.Bridges.AddIn(tx, *c.AddBridge)
		return err
	case c.DelBridge != "":
		return h.Bridges.DeleteIn(tx, c.DelBridge)
	case c.AddPort != nil:
		return h.Ports.AddIn(tx, c.AddPort.Name, c.AddPort.Options, onFailure)
	case c.ModPort != nil:
		return h.Ports.ModifyIn(tx, c.Port, c.ModPort.Options, onFailure)
	case c.DelPort != "":
		return h.Ports.DeleteIn(tx, c.DelPort)
	case c.Conntrack != nil:
		err := h.Tracking.Change(c.Conntrack)
		if err == nil {
			tx.Lasts()
		}
		return err
	}
	b, err := h.Bridges.Find(c.Bridge)
	if err != nil {
		return err
	}
	tx.ShowNow() // the texts of later changes may name ports that earlier changes have added
	switch {
	case c.ModBridge != nil:
		_, err = h.Bridges.ModifyIn(tx, b, *c.ModBridge)
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

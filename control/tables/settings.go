// SPDX-License-Identifier: Apache-2.0

package tables

import (
	"weft/api"
	"weft/control/change"
	"weft/control/usererr"
	"weft/openflow"
	"weft/openflow/ofproto"
)

// ModTable changes the settings of flow tables: the limit of flows, and eviction at the limit. After
// an error no setting has changed. ModTable removes no flow.
func (ts *Tables) ModTable(mod api.ModTable) error {
	return ts.configuration.Update(func(tx *change.Tx) error { return ts.ModTableIn(tx, mod) })
}

// ModTableIn changes the same settings as ModTable, as one of several changes in the transaction tx.
func (ts *Tables) ModTableIn(tx *change.Tx, mod api.ModTable) error {
	return ts.bridge.Configure(tx, mod.Table, func(c *ofproto.TableConfig) error {
		if err := c.SetWords(mod.Settings); err != nil {
			return usererr.Mark(err)
		}
		return nil
	})
}

// ListTables returns the tables with flows or settings.
func (ts *Tables) ListTables() []api.Table {
	list := []api.Table{}
	ts.bridge.Read(func(tables *ofproto.Tables) {
		for t := range openflow.Tables {
			c, n := tables.Config(uint8(t))
			if n > 0 || c != (ofproto.TableConfig{}) {
				list = append(list, api.Table{Table: t, Flows: n, Limit: c.Limit, Evict: c.Evict})
			}
		}
	})
	return list
}

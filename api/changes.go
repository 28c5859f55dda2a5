// SPDX-License-Identifier: Apache-2.0

package api

import "net/http"

// Changes is a list of changes that the daemon makes in order, in one transaction. If the daemon is
// killed meanwhile, either all or none of them are in effect after its restart.
//
// If the daemon refuses a change, it takes back the changes before it. It cannot do so if one of them
// has changed a table or a setting of connection tracking; then all changes before the refused one
// stay. If the engine cannot use the device of a port, all changes except those of this port stay.
type Changes struct {
	Changes []Change `json:"changes"`
}

// Change is one element of Changes. Exactly one of the fields after Bridge is set. The field Port only
// belongs to ModPort.
type Change struct {
	// Bridge is the bridge whose tables or settings change; "": the first bridge.
	Bridge string `json:"bridge,omitempty"`

	AddBridge *AddBridge       `json:"add_bridge,omitempty"`
	ModBridge *ModBridge       `json:"mod_bridge,omitempty"`
	DelBridge string           `json:"del_bridge,omitempty"` // name of the bridge
	AddPort   *AddPort         `json:"add_port,omitempty"`
	ModPort   *ModPort         `json:"mod_port,omitempty"`
	Port      string           `json:"port,omitempty"`     // name of the port that ModPort changes
	DelPort   string           `json:"del_port,omitempty"` // name of the port
	Conntrack *ChangeConntrack `json:"conntrack,omitempty"`
	TLVs      *ChangeTLVs      `json:"tlvs,omitempty"`
	Meters    *ChangeTable     `json:"meters,omitempty"`
	Groups    *ChangeTable     `json:"groups,omitempty"`
	Table     *ModTable        `json:"table,omitempty"`
	Flows     string           `json:"flows,omitempty"` // a file of flows, to add as ChangeFlows does
}

// Change sends the changes to the daemon, which makes them in one transaction.
func (c *Client) Change(list []Change) error {
	return c.Do(http.MethodPost, "/v1/changes", nil, Changes{list}, nil)
}

// SPDX-License-Identifier: Apache-2.0

package api

import "net/http"

// Changes is a request for changes in their order, in one transaction: a daemon that is killed
// meanwhile has all of them or none afterwards. If a change is refused before a table or a setting of
// connection tracking has changed, nothing changes. Otherwise the changes before the refused one are
// in force, as are all but those of a port whose device the engine refuses.
type Changes struct {
	Changes []Change `json:"changes"`
}

// Change is one of Changes. It has one of the fields below Bridge.
type Change struct {
	// Bridge names the bridge of a change of tables or of ModBridge; "": the first one.
	Bridge string `json:"bridge,omitempty"`

	AddBridge *AddBridge       `json:"add_bridge,omitempty"`
	ModBridge *ModBridge       `json:"mod_bridge,omitempty"`
	DelBridge string           `json:"del_bridge,omitempty"` // name of the bridge
	AddPort   *AddPort         `json:"add_port,omitempty"`
	ModPort   *ModPort         `json:"mod_port,omitempty"`
	Port      string           `json:"port,omitempty"`     // name of ModPort's port
	DelPort   string           `json:"del_port,omitempty"` // name of the port
	Conntrack *ChangeConntrack `json:"conntrack,omitempty"`
	TLVs      *ChangeTLVs      `json:"tlvs,omitempty"`
	Meters    *ChangeTable     `json:"meters,omitempty"`
	Groups    *ChangeTable     `json:"groups,omitempty"`
	Table     *ModTable        `json:"table,omitempty"`
	Flows     string           `json:"flows,omitempty"` // a file of flows, as of ChangeFlows with the operation add
}

// Change makes changes in one transaction.
func (c *Client) Change(list []Change) error {
	return c.Do(http.MethodPost, "/v1/changes", nil, Changes{list}, nil)
}

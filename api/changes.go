// SPDX-License-Identifier: Apache-2.0

package api

import "net/http"

// Changes is a request for several changes, which the daemon makes in their order and in one
// transaction. A daemon that is killed meanwhile has made all of them afterwards, or none. If the
// daemon refuses a change before it has changed a table or a setting of connection tracking, it
// changes nothing. Otherwise the changes before the refused one stay. If the engine refuses the device
// of a port, all changes except those of this port stay.
type Changes struct {
	Changes []Change `json:"changes"`
}

// Change is one of Changes. It has exactly one of the fields below Bridge; ModPort also needs Port.
type Change struct {
	// Bridge is the name of the bridge whose tables or settings change; "": the first bridge.
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

// Change makes the changes in one transaction.
func (c *Client) Change(list []Change) error {
	return c.Do(http.MethodPost, "/v1/changes", nil, Changes{list}, nil)
}

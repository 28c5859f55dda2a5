// SPDX-License-Identifier: Apache-2.0

package api

import (
	"net/http"
	"net/url"
)

// GET /v1/limits[?port=NAME] answers []Limit: how much of each shared resource is in use. Ports,
// conntrack zones, VNIs and clients share resources. With port=NAME the answer is only about this port.

// Limit says how much of a shared resource one holder uses. The holder is a port, a conntrack zone, a
// VNI or a client, or stands for all of them together.
type Limit struct {
	Name string `json:"name"` // name of the resource, for example megaflows
	Unit string `json:"unit"` // unit of Used, Guarantee and Limit: entries, bytes, ...
	// HolderKind is the kind of the holder: port, zone, vni, peer (a client of the API) or all. Holder
	// is the port's name, the number of the zone or VNI, or the client's user or address. It is empty
	// if HolderKind is all.
	HolderKind string `json:"holder_kind"`
	Holder     string `json:"holder"`
	Used       uint64 `json:"used"`
	Guarantee  uint64 `json:"guarantee"` // amount reserved for the holder; 0: nothing
	Limit      uint64 `json:"limit"`     // largest amount that the holder may use now; 0: no limit
	Refused    uint64 `json:"refused"`   // number of the holder's refused requests since the daemon started
	Evicted    uint64 `json:"evicted"`   // number of the holder's entries evicted to make room
}

// Limits lists the shared resources and how much of each is in use. portName selects one port; if it is
// empty, Limits lists all holders.
func (c *Client) Limits(portName string) ([]Limit, error) {
	var rows []Limit
	query := url.Values{}
	if portName != "" {
		query.Set("port", portName)
	}
	return rows, c.Do(http.MethodGet, "/v1/limits", query, nil, &rows)
}

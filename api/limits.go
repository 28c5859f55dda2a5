// SPDX-License-Identifier: Apache-2.0

package api

import (
	"net/http"
	"net/url"
)

// GET /v1/limits[?port=NAME] answers []Limit: the use of every resource that ports,
// zones, VNIs or clients share. With port=NAME it answers only the rows of this port.

// Limit is the use of one shared resource by one holder: a port, zone, VNI or client, or all together.
type Limit struct {
	Name string `json:"name"` // name of the resource, for example megaflows
	Unit string `json:"unit"` // unit of Used, Guarantee and Limit: entries, bytes, ...
	// HolderKind is the kind of the holder: all, port, zone, vni or peer. Holder is the port's name,
	// the number of the zone or VNI, or the client's user or address. If HolderKind is all, Holder is
	// empty.
	HolderKind string `json:"holder_kind"`
	Holder     string `json:"holder"`
	Used       uint64 `json:"used"`
	Guarantee  uint64 `json:"guarantee"` // amount reserved for the holder; 0: nothing
	Limit      uint64 `json:"limit"`     // largest amount that the holder may use now; 0: no limit
	Refused    uint64 `json:"refused"`   // number of the holder's refused requests since the daemon started
	Evicted    uint64 `json:"evicted"`   // number of the holder's entries evicted to make room
}

// Limits lists the shared resources and their use. portName selects the rows of one port;
// an empty portName selects all rows.
func (c *Client) Limits(portName string) ([]Limit, error) {
	var rows []Limit
	query := url.Values{}
	if portName != "" {
		query.Set("port", portName)
	}
	return rows, c.Do(http.MethodGet, "/v1/limits", query, nil, &rows)
}

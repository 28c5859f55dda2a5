// SPDX-License-Identifier: Apache-2.0

package api

import (
	"net/http"
	"net/url"
)

// GET /v1/limits[?port=NAME] answers []Limit: every resource that ports, zones, VNIs
// or clients share, with its use. A port selects the rows of this port only.

// Limit is one holder's use of one shared resource.
type Limit struct {
	Name string `json:"name"` // name of the resource, for example megaflows
	Unit string `json:"unit"` // unit of the numbers: entries, bytes, ...
	// HolderKind is all, port, zone, vni or peer. Holder is the port's name, the
	// number of the zone or VNI, or the peer's address. It is empty for all.
	HolderKind string `json:"holder_kind"`
	Holder     string `json:"holder"`
	Used       uint64 `json:"used"`
	Guarantee  uint64 `json:"guarantee"` // amount reserved for the holder; 0: nothing
	Limit      uint64 `json:"limit"`     // largest amount the holder may have now; 0: none
	Refused    uint64 `json:"refused"`   // number of requests refused since the daemon started
	Evicted    uint64 `json:"evicted"`   // number of the holder's entries evicted for new ones of any holder
}

// Limits lists the shared resources and their use. port selects the rows of one port;
// an empty port selects all rows.
func (c *Client) Limits(port string) ([]Limit, error) {
	var rows []Limit
	query := url.Values{}
	if port != "" {
		query.Set("port", port)
	}
	return rows, c.Do(http.MethodGet, "/v1/limits", query, nil, &rows)
}

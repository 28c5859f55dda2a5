package api

import (
	"net/http"
	"net/url"
)

// GET /v1/limits[?port=NAME] answers []Limit: every resource that ports, zones, VNIs
// or clients share, with its use. With a port, only the rows that the port holds.

// Limit is one holder's use of one shared resource.
type Limit struct {
	Name string `json:"name"` // of the resource, as in megaflows
	Unit string `json:"unit"` // of the four numbers: entries, bytes, ...
	// HolderKind is all, port, zone, vni or peer. Holder is the port's name, the
	// number of the zone or VNI, or the peer's address; empty for all.
	HolderKind string `json:"holder_kind"`
	Holder     string `json:"holder"`
	Used       uint64 `json:"used"`
	Guarantee  uint64 `json:"guarantee"` // what others cannot take; 0: nothing
	Limit      uint64 `json:"limit"`     // the most the holder may have at the moment; 0: none
	Refused    uint64 `json:"refused"`   // requests for more that were refused, since the daemon started
	Evicted    uint64 `json:"evicted"`   // entries of the holder that made room for others or for its own
}

// Limits lists what is shared and its use; port selects the rows that one port
// holds, empty: all rows.
func (c *Client) Limits(port string) ([]Limit, error) {
	var rows []Limit
	query := url.Values{}
	if port != "" {
		query.Set("port", port)
	}
	return rows, c.Do(http.MethodGet, "/v1/limits", query, nil, &rows)
}

// SPDX-License-Identifier: Apache-2.0

package api

import (
	"net/http"
	"net/url"
)

// GET /v1/routes[?port=NAME] answers []Route: the paths of tunnels to their remotes. With
// port=NAME it answers only the paths of this port.

// Route is the path of a tunnel to a remote through one next hop. An empty string or 0 means
// that the field is unknown.
type Route struct {
	Port    string `json:"port"`
	Remote  string `json:"remote"`
	Local   string `json:"local"`    // source address
	NextHop string `json:"next_hop"` // gateway, or the remote itself
	Device  string `json:"device"`
	MAC     string `json:"mac"` // MAC address of the next hop
	MTU     int    `json:"mtu"` // largest IP packet in bytes
	// State is reachable, stale, waiting, failed or none. Frames are sent by routes that are reachable
	// or stale. Reason says why a route is in another state.
	State  string `json:"state"`
	Reason string `json:"reason"`
}

// Routes lists the paths of tunnels to their remotes. portName selects the paths of one port; an
// empty portName selects all.
func (c *Client) Routes(portName string) ([]Route, error) {
	var routes []Route
	query := url.Values{}
	if portName != "" {
		query.Set("port", portName)
	}
	return routes, c.Do(http.MethodGet, "/v1/routes", query, nil, &routes)
}

// SPDX-License-Identifier: Apache-2.0

package api

import (
	"net/http"
	"net/url"
)

// GET /v1/routes[?port=NAME] answers []Route: for each tunnel and each of its remote endpoints, the
// next hop in the underlay network. With port=NAME the answer is only about this tunnel port.

// Route is the way of a tunnel's packets to a remote endpoint, through one next hop. An empty string or
// 0 means that the field is unknown.
type Route struct {
	Port    string `json:"port"`
	Remote  string `json:"remote"`
	Local   string `json:"local"`    // source address
	NextHop string `json:"next_hop"` // gateway, or the remote itself
	Device  string `json:"device"`
	MAC     string `json:"mac"` // MAC address of the next hop
	MTU     int    `json:"mtu"` // largest IP packet in bytes
	// State is the state of the next hop: reachable, stale, waiting, failed or none. Packets are sent
	// only if it is reachable or stale. Reason explains the other states.
	State  string `json:"state"`
	Reason string `json:"reason"`
}

// Routes lists the next hops to the remote endpoints of tunnels. portName selects one tunnel port; if
// it is empty, Routes lists all.
func (c *Client) Routes(portName string) ([]Route, error) {
	var routes []Route
	query := url.Values{}
	if portName != "" {
		query.Set("port", portName)
	}
	return routes, c.Do(http.MethodGet, "/v1/routes", query, nil, &routes)
}

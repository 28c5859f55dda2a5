// SPDX-License-Identifier: Apache-2.0

package api

import (
	"net/http"
	"net/url"
)

// MAC is an address that the action normal has learned or that a port declares.
type MAC struct {
	PortNumber uint32  `json:"port_number"`
	Port       string  `json:"port"`
	VLAN       uint16  `json:"vlan"`
	MAC        string  `json:"mac"`
	VNI        *uint32 `json:"vni,omitempty"`    // VNI of a tunnel port
	Remote     string  `json:"remote,omitempty"` // tunnel endpoint of the address, if the port has several
	AgeS       float64 `json:"age_s"`            // time since the last frame from the address; 0 if declared
	// Declared is set if the port's options mac= or addresses= name the address. A
	// declared address is in all VLANs (VLAN is 0) and stays as long as the port.
	Declared bool `json:"declared,omitempty"`
}

// MACsFlushed is the number of addresses deleted.
type MACsFlushed struct {
	Flushed int `json:"flushed"`
}

// MACs lists the learned and declared addresses.
func (c *Client) MACs() ([]MAC, error) {
	var list []MAC
	return list, c.Do(http.MethodGet, "/v1/macs", nil, nil, &list)
}

// FlushMACs deletes the addresses learned on a port; an empty port means all ports.
func (c *Client) FlushMACs(port string) (MACsFlushed, error) {
	var n MACsFlushed
	query := url.Values{}
	if port != "" {
		query.Set("port", port)
	}
	return n, c.Do(http.MethodDelete, "/v1/macs", query, nil, &n)
}

// SPDX-License-Identifier: Apache-2.0

package api

import (
	"net/http"
	"net/url"
)

// MAC is a MAC address that the OpenFlow action NORMAL has learned or that a port's options declare.
type MAC struct {
	PortNumber uint32  `json:"port_number"`
	Port       string  `json:"port"`
	VLAN       uint16  `json:"vlan"`
	MAC        string  `json:"mac"`
	VNI        *uint32 `json:"vni,omitempty"` // VNI of a tunnel port
	// address of the remote tunnel endpoint behind which the MAC address is, if the port has several
	// such endpoints
	Remote string `json:"remote,omitempty"`
	// time in seconds since the last frame from the MAC address; 0 if the address is declared
	AgeS float64 `json:"age_s"`
	// Declared is true if the port's options mac= or addresses= name the address. A
	// declared address is in all VLANs (VLAN is 0) and stays as long as the port.
	Declared bool `json:"declared,omitempty"`
}

// MACsFlushed has the number of MAC addresses that FlushMACs has deleted.
type MACsFlushed struct {
	Flushed int `json:"flushed"`
}

// MACs lists the learned and declared MAC addresses.
func (c *Client) MACs() ([]MAC, error) {
	var list []MAC
	return list, c.Do(http.MethodGet, "/v1/macs", nil, nil, &list)
}

// FlushMACs deletes the MAC addresses learned on a port; an empty portName means all
// ports.
func (c *Client) FlushMACs(portName string) (MACsFlushed, error) {
	var n MACsFlushed
	query := url.Values{}
	if portName != "" {
		query.Set("port", portName)
	}
	return n, c.Do(http.MethodDelete, "/v1/macs", query, nil, &n)
}

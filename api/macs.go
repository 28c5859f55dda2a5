package api

import (
	"net/http"
	"net/url"
)

// MAC is an address that normal has learnt, or that a port has declared.
type MAC struct {
	PortNumber uint32  `json:"port_number"`
	Port       string  `json:"port"`
	VLAN       uint16  `json:"vlan"`
	MAC        string  `json:"mac"`
	VNI        *uint32 `json:"vni,omitempty"`    // of the port it was learnt on, if that has one
	Remote     string  `json:"remote,omitempty"` // the tunnel endpoint it is behind, where the port has several
	AgeS       float64 `json:"age_s"`            // since it was last seen; 0 if it is declared
	// Declared: mac= or addresses= of the port names it. It is in all VLANs (VLAN is 0)
	// and stays as long as the port does.
	Declared bool `json:"declared,omitempty"`
}

// MACsFlushed tells how many addresses were forgotten.
type MACsFlushed struct {
	Flushed int `json:"flushed"`
}

// MACs lists the addresses that normal has learnt.
func (c *Client) MACs() ([]MAC, error) {
	var list []MAC
	return list, c.Do(http.MethodGet, "/v1/macs", nil, nil, &list)
}

// FlushMACs forgets the addresses learnt on a port; empty: on all.
func (c *Client) FlushMACs(port string) (MACsFlushed, error) {
	var n MACsFlushed
	query := url.Values{}
	if port != "" {
		query.Set("port", port)
	}
	return n, c.Do(http.MethodDelete, "/v1/macs", query, nil, &n)
}

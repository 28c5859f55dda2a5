// SPDX-License-Identifier: Apache-2.0

package api

import (
	"io"
	"net/http"
	"net/url"
)

// Paths of connection tracking:
//
//	GET    /v1/conntrack[?arg=ARG...][&more=true][&statistics=true][&json=true]
//	       one line for each connection, in the format of ovs-dpctl dump-conntrack;
//	       with json=true, each line is a Connection in JSON
//	GET    /v1/conntrack/expectations[?zone=N]   []Expectation
//	DELETE /v1/conntrack[?arg=ARG...]        -> ConnectionsChanged
//	GET    /v1/conntrack/settings            Conntrack
//	POST   /v1/conntrack/settings            ChangeConntrack
//
// ARG are the arguments of dump-conntrack and flush-conntrack in ovs-dpctl(8), in
// their order: zone=N, mark=N[/MASK], labels=N[/MASK], the original tuple, the reply
// tuple.

// Connection is a connection of the connection tracking table.
type Connection struct {
	Protocol string `json:"protocol"`
	Orig     Tuple  `json:"orig"`
	Reply    Tuple  `json:"reply"`
	Zone     uint16 `json:"zone"`
	Mark     uint32 `json:"mark"`
	Replied  bool   `json:"replied"`
	Timer    string `json:"timer"` // name of the timeout in force
	TimeoutS uint32 `json:"timeout_s"`
	// Line is the whole connection, in the format of ovs-dpctl dump-conntrack.
	Line string `json:"line"`
}

// Tuple has the addresses of one direction of a connection. For ICMP, SrcPort is the
// identifier, and DstPort holds type and code, 8 bits each.
type Tuple struct {
	Src     string `json:"src"`
	Dst     string `json:"dst"`
	SrcPort uint16 `json:"src_port"`
	DstPort uint16 `json:"dst_port"`
}

// Expectation is a connection that connection tracking expects but that has not begun. FTP or TFTP has
// announced it on the connection Parent.
type Expectation struct {
	Protocol string `json:"protocol"`
	Tuple    Tuple  `json:"tuple"` // SrcPort 0: any port
	Parent   Tuple  `json:"parent"`
	Zone     uint16 `json:"zone"`
	TimeoutS uint32 `json:"timeout_s"`
	// Line is the expectation in the format of ovs-dpctl dump-conntrack-exp.
	Line string `json:"line"`
}

// ConnectionsChanged has the number of deleted connections.
type ConnectionsChanged struct {
	Connections int `json:"connections"`
}

// Conntrack has settings and counters of the connection table.
type Conntrack struct {
	Connections    int               `json:"connections"`
	MaxConnections int               `json:"max_connections"`
	DefaultLimit   uint32            `json:"default_limit"` // limit of connections in each zone that has no limit of its own; 0: no limit
	SequenceChecks bool              `json:"sequence_checks"`
	Timeouts       map[string]uint32 `json:"timeouts_s"`
	Zones          []Zone            `json:"zones"` // zones with connections or settings
	Created        uint64            `json:"created"`
	Expired        uint64            `json:"expired"`
	Evicted        uint64            `json:"evicted"`
	RefusedLimit   uint64            `json:"refused_limit"`
	RefusedNAT     uint64            `json:"refused_nat"`
}

// Zone has the number of connections and the settings of one connection tracking
// zone.
type Zone struct {
	Zone        uint16            `json:"zone"`
	Connections int               `json:"connections"`
	Limit       *uint32           `json:"limit,omitempty"`      // the zone's own limit; 0: no new connections
	Timeouts    map[string]uint32 `json:"timeouts_s,omitempty"` // the zone's own timeouts
}

// ZoneLimit limits a connection tracking zone to Limit connections; 0 refuses every new
// one.
type ZoneLimit struct {
	Zone  uint16 `json:"zone"`
	Limit uint32 `json:"limit"`
}

// ChangeConntrack is a request to change settings of the connection table. Settings that are absent
// stay.
type ChangeConntrack struct {
	MaxConnections *uint32     `json:"max_connections,omitempty"`
	SequenceChecks *bool       `json:"sequence_checks,omitempty"`
	DefaultLimit   *uint32     `json:"default_limit,omitempty"`
	Limits         []ZoneLimit `json:"limits,omitempty"`
	ClearLimits    []uint16    `json:"clear_limits,omitempty"`
	// ClearDefaultLimit removes the limit DefaultLimit.
	ClearDefaultLimit bool `json:"clear_default_limit,omitempty"`
	// Timeouts has timeouts in seconds, by name. They apply to the zone TimeoutZone. Without
	// TimeoutZone, they apply to all zones that have no timeouts of their own. If Timeouts is empty,
	// ClearTimeouts restores the defaults.
	Timeouts      map[string]uint32 `json:"timeouts_s,omitempty"`
	TimeoutZone   *uint16           `json:"timeout_zone,omitempty"`
	ClearTimeouts bool              `json:"clear_timeouts,omitempty"`
}

// DumpConntrack selects the connections that Client.Connections writes, and their format. Args are the
// arguments of dump-conntrack in ovs-dpctl(8).
type DumpConntrack struct {
	Args                   []string
	More, Statistics, JSON bool
}

// Connections writes the connections that d selects to w, one per line. It writes each
// line as soon as the line arrives.
func (c *Client) Connections(w io.Writer, d DumpConntrack) error {
	query := url.Values{"arg": d.Args}
	for name, set := range map[string]bool{"more": d.More, "statistics": d.Statistics, "json": d.JSON} {
		if set {
			query.Set(name, "true")
		}
	}
	const path = "/v1/conntrack"
	resp, err := c.http.Get("http://weftd" + path + "?" + query.Encode())
	if err != nil {
		return c.unreachable(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode/100 != 2 {
		answer, err := io.ReadAll(resp.Body)
		if err != nil {
			return c.unreachable(err)
		}
		return refusal(http.MethodGet, path, resp, answer)
	}
	if _, err := io.Copy(w, resp.Body); err != nil {
		return c.unreachable(err)
	}
	return nil
}

// FlushConnections deletes the connections that args select. args are the arguments of flush-conntrack
// in ovs-dpctl(8).
func (c *Client) FlushConnections(args []string) (ConnectionsChanged, error) {
	var n ConnectionsChanged
	return n, c.Do(http.MethodDelete, "/v1/conntrack", url.Values{"arg": args}, nil, &n)
}

// Expectations returns the expected connections of the zone with this number, or of all zones if
// zoneText is empty.
func (c *Client) Expectations(zoneText string) ([]Expectation, error) {
	query := url.Values{}
	if zoneText != "" {
		query.Set("zone", zoneText)
	}
	var list []Expectation
	return list, c.Do(http.MethodGet, "/v1/conntrack/expectations", query, nil, &list)
}

// Conntrack returns settings and counters of the connection table.
func (c *Client) Conntrack() (Conntrack, error) {
	var s Conntrack
	return s, c.Do(http.MethodGet, "/v1/conntrack/settings", nil, nil, &s)
}

// ChangeConntrack changes the settings of the connection table that are set in change.
func (c *Client) ChangeConntrack(change ChangeConntrack) error {
	return c.Do(http.MethodPost, "/v1/conntrack/settings", nil, change, nil)
}

package api

import (
	"net/http"
	"net/url"
)

// ChangeTable changes groups or meters: wholly or, when any line is wrong, not
// at all. Deleted ones take the flows with them that name them.
type ChangeTable struct {
	// Op is add, modify or delete, and for groups put: add or modify.
	Op string `json:"op"`
	// Text is one group or meter or, with File, one a line with # comments.
	Text string `json:"text"`
	File bool   `json:"file,omitempty"`
}

// TableChanged is how many groups or meters were asked for, and how many flows
// went with deleted ones.
type TableChanged struct {
	Changed int `json:"changed"`
	Flows   int `json:"flows_deleted"`
}

// Group is a group.
type Group struct {
	ID   uint32 `json:"id"`
	Type string `json:"type"`
	Line string `json:"line"` // as ovs-ofctl dump-groups shows it
	// What it has counted since it was added, or modified last.
	DurationS float64       `json:"duration_s"` // since it was added
	Flows     int           `json:"flows"`      // that name it
	Packets   uint64        `json:"packets"`
	Bytes     uint64        `json:"bytes"`
	Buckets   []BucketStats `json:"buckets"`
}

// BucketStats is what one bucket of a group has counted.
type BucketStats struct {
	Packets uint64 `json:"packets"`
	Bytes   uint64 `json:"bytes"`
}

// Meter is a meter with its statistics over all workers.
type Meter struct {
	ID        uint32      `json:"id"`
	Line      string      `json:"line"` // as add-meter takes it
	Flows     int         `json:"flows"`
	DurationS float64     `json:"duration_s"`
	Packets   uint64      `json:"packets"` // that came to it
	Bytes     uint64      `json:"bytes"`
	Bands     []MeterBand `json:"bands"`
}

// MeterBand is what one band of a meter has dropped.
type MeterBand struct {
	Packets uint64 `json:"packets"`
	Bytes   uint64 `json:"bytes"`
}

// ChangeGroups changes groups, ChangeMeters meters.
func (c *Client) ChangeGroups(change ChangeTable) (TableChanged, error) {
	var n TableChanged
	return n, c.Do(http.MethodPost, "/v1/groups", nil, change, &n)
}

// ChangeMeters changes meters.
func (c *Client) ChangeMeters(change ChangeTable) (TableChanged, error) {
	var n TableChanged
	return n, c.Do(http.MethodPost, "/v1/meters", nil, change, &n)
}

// Groups lists the groups, or those that text, group_id=N, selects.
func (c *Client) Groups(text string) ([]Group, error) {
	var groups []Group
	return groups, c.Do(http.MethodGet, "/v1/groups", selectQuery(text), nil, &groups)
}

// Meters lists the meters, or those that text, meter=N, selects.
func (c *Client) Meters(text string) ([]Meter, error) {
	var meters []Meter
	return meters, c.Do(http.MethodGet, "/v1/meters", selectQuery(text), nil, &meters)
}

func selectQuery(text string) url.Values {
	query := url.Values{}
	if text != "" {
		query.Set("select", text)
	}
	return query
}

// ModTable bounds a flow table: settings are evict, noevict and limit:N (0:
// none).
type ModTable struct {
	Table    int      `json:"table"` // 0 to 254; -1: all
	Settings []string `json:"settings"`
}

// Table is a flow table that has flows or settings.
type Table struct {
	Table int  `json:"table"`
	Flows int  `json:"flows"`
	Limit int  `json:"limit"` // 0: none of its own
	Evict bool `json:"evict"`
}

// ModTable bounds a flow table.
func (c *Client) ModTable(mod ModTable) error {
	return c.Do(http.MethodPost, "/v1/tables", nil, mod, nil)
}

// Tables lists the flow tables that have flows or settings.
func (c *Client) Tables() ([]Table, error) {
	var tables []Table
	return tables, c.Do(http.MethodGet, "/v1/tables", nil, nil, &tables)
}

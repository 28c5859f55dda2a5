// SPDX-License-Identifier: Apache-2.0

package api

import (
	"net/http"
	"net/url"
)

// ChangeTable is a request to change groups or meters of a bridge. If a line is wrong, the daemon
// changes nothing. If a group or meter is deleted, the flows that use it are deleted with it.
type ChangeTable struct {
	// Op is the operation: "add", "modify" or "delete". Groups also have "put", which
	// adds or modifies.
	Op string `json:"op"`
	// Text is one group or meter. If File is set, Text has one group or meter per line,
	// and may have # comments.
	Text string `json:"text"`
	File bool   `json:"file,omitempty"`
}

// TableChanged has the number of groups or meters that have changed. It also has the number of flows
// that were deleted because they used a deleted group or meter.
type TableChanged struct {
	Changed int `json:"changed"`
	Flows   int `json:"flows_deleted"`
}

// Group is an OpenFlow group with its statistics.
type Group struct {
	ID   uint32 `json:"id"`
	Type string `json:"type"`
	Line string `json:"line"` // whole group in the format of ovs-ofctl dump-groups
	// DurationS counts from the addition of the group. Packets and Bytes start at 0 whenever it is
	// modified.
	DurationS float64       `json:"duration_s"` // since the group was added
	Flows     int           `json:"flows"`      // number of flows that name the group
	Packets   uint64        `json:"packets"`
	Bytes     uint64        `json:"bytes"`
	Buckets   []BucketStats `json:"buckets"`
}

// BucketStats has the counters of one bucket of a group.
type BucketStats struct {
	Packets uint64 `json:"packets"`
	Bytes   uint64 `json:"bytes"`
}

// Meter is an OpenFlow meter with its statistics, summed over all workers.
type Meter struct {
	ID        uint32      `json:"id"`
	Line      string      `json:"line"` // the meter in the syntax of add-meter
	Flows     int         `json:"flows"`
	DurationS float64     `json:"duration_s"`
	Packets   uint64      `json:"packets"` // number of packets metered
	Bytes     uint64      `json:"bytes"`
	Bands     []MeterBand `json:"bands"`
}

// MeterBand has the drop counters of one band of a meter.
type MeterBand struct {
	Packets uint64 `json:"packets"`
	Bytes   uint64 `json:"bytes"`
}

// ChangeGroups changes groups.
func (c *Client) ChangeGroups(change ChangeTable) (TableChanged, error) {
	var n TableChanged
	return n, c.Do(http.MethodPost, "/v1/groups", nil, change, &n)
}

// ChangeMeters changes meters.
func (c *Client) ChangeMeters(change ChangeTable) (TableChanged, error) {
	var n TableChanged
	return n, c.Do(http.MethodPost, "/v1/meters", nil, change, &n)
}

// Groups lists all groups, or the group that text (group_id=N) selects.
func (c *Client) Groups(text string) ([]Group, error) {
	var groups []Group
	return groups, c.Do(http.MethodGet, "/v1/groups", selectQuery(text), nil, &groups)
}

// Meters lists all meters, or the meter that text (meter=N) selects.
func (c *Client) Meters(text string) ([]Meter, error) {
	var meters []Meter
	return meters, c.Do(http.MethodGet, "/v1/meters", selectQuery(text), nil, &meters)
}

// Queue is an egress queue of a port with its counters. They start at 0 when the queue is changed or
// the engine starts.
type Queue struct {
	Port      string  `json:"port"`
	Queue     uint32  `json:"queue"`
	RateKbps  uint32  `json:"rate_kbps"`
	BurstKbit uint32  `json:"burst_kbit"`
	Packets   uint64  `json:"packets"` // sent
	Bytes     uint64  `json:"bytes"`   // sent
	Dropped   uint64  `json:"dropped"` // dropped because the queue's rate was exceeded
	DurationS float64 `json:"duration_s"`
}

// Queues lists the queues of the named port, or of all ports if port is empty.
func (c *Client) Queues(port string) ([]Queue, error) {
	var queues []Queue
	return queues, c.Do(http.MethodGet, "/v1/queues", selectQuery(port), nil, &queues)
}

func selectQuery(text string) url.Values {
	query := url.Values{}
	if text != "" {
		query.Set("select", text)
	}
	return query
}

// ModTable is a request to change the limits of a flow table. Each setting is the word evict, noevict
// or limit:N; limit:0 removes the limit.
type ModTable struct {
	Table    int      `json:"table"` // 0 to 254; -1 means all tables
	Settings []string `json:"settings"`
}

// Table is a flow table that has at least one flow or setting.
type Table struct {
	Table int  `json:"table"`
	Flows int  `json:"flows"`
	Limit int  `json:"limit"` // the table's own limit; 0: none
	Evict bool `json:"evict"`
}

// ModTable changes the limits of the flow table that mod names.
func (c *Client) ModTable(mod ModTable) error {
	return c.Do(http.MethodPost, "/v1/tables", nil, mod, nil)
}

// ChangeTLVs is a request to change the TLV map of a bridge. Nothing changes if a mapping is wrong, or
// if a flow or group uses a field whose mapping the request deletes.
type ChangeTLVs struct {
	Op string `json:"op"` // "add" or "delete"
	// Text has mappings of the form {class=0xffff,type=0,len=4}->tun_metadata0, separated by commas.
	// If Op is "delete" and Text is empty, all mappings are deleted.
	Text string `json:"text"`
}

// TLVMap maps options of Geneve headers to the fields tun_metadata0 to tun_metadata63.
type TLVMap struct {
	MaxSpace  int          `json:"max_option_space"` // bytes
	MaxFields int          `json:"max_fields"`
	Space     int          `json:"allocated_option_space"` // bytes
	Mappings  []TLVMapping `json:"mappings"`
}

// TLVMapping maps one Geneve option to a field.
type TLVMapping struct {
	Class uint16 `json:"class"`
	Type  uint8  `json:"type"`
	Len   uint8  `json:"len"` // bytes
	Field string `json:"field"`
	Line  string `json:"line"` // the mapping in the form of ChangeTLVs.Text
}

// ChangeTLVs adds mappings to the TLV map of the client's bridge, or deletes some.
func (c *Client) ChangeTLVs(change ChangeTLVs) error {
	return c.Do(http.MethodPost, "/v1/tlv-map", nil, change, nil)
}

// TLVMap returns the TLV map of the client's bridge.
func (c *Client) TLVMap() (m TLVMap, err error) {
	return m, c.Do(http.MethodGet, "/v1/tlv-map", nil, nil, &m)
}

// Tables lists the flow tables that have flows or settings.
func (c *Client) Tables() ([]Table, error) {
	var tables []Table
	return tables, c.Do(http.MethodGet, "/v1/tables", nil, nil, &tables)
}

// SPDX-License-Identifier: Apache-2.0

package ovsdb

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
)

// row is a row of the database: the values of its monitored columns.
type row map[string]value

func (r row) text(column string) string {
	if v := r[column]; len(v.atoms) == 1 {
		if text, ok := v.atoms[0].(string); ok {
			return text
		}
	}
	return ""
}

func (r row) truth(column string) bool {
	v := r[column]
	return len(v.atoms) == 1 && v.atoms[0] == true
}

// number returns the integer of a column, or false if the column is empty.
func (r row) number(column string) (int64, bool) {
	if v := r[column]; len(v.atoms) == 1 {
		n, ok := v.atoms[0].(int64)
		return n, ok
	}
	return 0, false
}

func (r row) refs(column string) (list []uuid) {
	for _, a := range r[column].atoms {
		if id, ok := a.(uuid); ok {
			list = append(list, id)
		}
	}
	return list
}

// numbers returns the integers of a column that is a set, sorted.
func (r row) numbers(column string) (list []int64) {
	for _, a := range r[column].atoms {
		if n, ok := a.(int64); ok {
			list = append(list, n)
		}
	}
	slices.Sort(list)
	return list
}

// get returns the value of a key in a column that maps texts to texts, or "".
func (r row) get(column, key string) string {
	text, _ := r[column].pairs[key].(string)
	return text
}

// milliseconds returns the number of a key in a column that maps texts to texts. It returns "usual" if
// the number is missing or not positive.
func (r row) milliseconds(column, key string, usual int64) int64 {
	if n, err := strconv.ParseInt(r.get(column, key), 10, 32); err == nil && n > 0 {
		return n
	}
	return usual
}

// tables is the client's copy of the monitored rows, by table. The goroutine of Run owns it.
type tables map[string]map[uuid]row

// monitored has the columns, by table, that the switch reads, or compares before it writes them.
// The columns statistics are not monitored, because they change all the time.
var monitored = map[string][]string{
	"Open_vSwitch": {"bridges", "cur_cfg", "datapath_types", "datapaths", "db_version", "iface_types", "next_cfg", "other_config", "ovs_version", "ssl"},
	"Bridge": {"controller", "datapath_id", "datapath_type", "datapath_version", "fail_mode", "flow_tables", "ipfix", "mcast_snooping_enable", "mirrors", "name", "netflow",
		"other_config", "ports", "rstp_enable", "sflow", "stp_enable"},
	"Port": {"bond_active_slave", "bond_downdelay", "bond_mode", "bond_updelay", "cvlans", "interfaces", "lacp", "name", "other_config", "qos", "tag",
		"trunks", "vlan_mode"},
	"Interface": {"admin_state", "bfd", "bfd_status", "duplex", "error", "ifindex", "ingress_policing_burst", "ingress_policing_kpkts_burst",
		"ingress_policing_kpkts_rate", "ingress_policing_rate", "lacp_current", "link_speed", "link_state", "mac", "mac_in_use", "mtu", "mtu_request", "name",
		"ofport", "ofport_request", "options", "other_config", "status", "type"},
	"Controller": {"is_connected", "role", "status", "target"},
	"Datapath":   {"capabilities", "ct_zone_default_limit", "ct_zones"},
	"CT_Zone":    {"limit", "timeout_policy"},
	"Flow_Table": {"flow_limit", "overflow_policy"},
	"QoS":        {"other_config", "queues", "type"},
	"Queue":      {"other_config"},
	"Mirror":     {"filter", "name", "output_port", "output_vlan", "select_all", "select_dst_port", "select_src_port", "select_vlan", "snaplen"},

	"CT_Timeout_Policy": {"timeouts"},

	"SSL": {"bootstrap_ca_cert", "ca_cert", "certificate", "private_key"},

	"IPFIX": {"cache_active_timeout", "cache_max_flows", "obs_domain_id", "obs_point_id", "other_config", "sampling", "targets", "template_interval"},
	"sFlow": {"agent", "header", "polling", "sampling", "targets"},

	"Flow_Sample_Collector_Set": {"bridge", "id", "ipfix"},
}

// schema is the part of the database's schema that the client needs.
type schema struct {
	Version string `json:"version"`
	Tables  map[string]struct {
		Columns map[string]struct {
			Type json.RawMessage `json:"type"`
		} `json:"columns"`
	} `json:"tables"`
}

// requests returns the columns to monitor, by table. It leaves out columns that the schema lacks.
func (s *schema) requests() map[string]any {
	all := map[string]any{}
	for table, columns := range monitored {
		var known []string
		for _, c := range columns {
			if _, has := s.Tables[table].Columns[c]; has {
				known = append(known, c)
			}
		}
		if len(known) > 0 {
			all[table] = []any{map[string]any{"columns": known}}
		}
	}
	return all
}

// several reports whether the schema allows more than one atom in a column.
func (s *schema) several(table, column string) bool {
	var t struct {
		Max any `json:"max"`
	}
	if json.Unmarshal(s.Tables[table].Columns[column].Type, &t) != nil {
		return false // the JSON is only a type's name: exactly one atom
	}
	n, isNumber := t.Max.(float64)
	return t.Max == "unlimited" || isNumber && n > 1
}

// tableUpdates is the parameter with the changed rows of a notification update2 or update3, by table.
type tableUpdates map[string]map[uuid]struct {
	Initial *map[string]json.RawMessage `json:"initial"`
	Insert  *map[string]json.RawMessage `json:"insert"`
	Modify  *map[string]json.RawMessage `json:"modify"`
	Delete  json.RawMessage             `json:"delete"` // null for a deleted row
}

// written has the names of columns that only the switch writes.
var written = map[string]bool{"admin_state": true, "bfd_status": true, "bond_active_slave": true, "capabilities": true, "cur_cfg": true, "datapath_id": true,
	"datapath_types": true, "datapath_version": true, "db_version": true, "duplex": true, "error": true, "iface_types": true, "ifindex": true,
	"is_connected": true, "lacp_current": true, "link_speed": true, "link_state": true, "mac_in_use": true, "mtu": true, "ofport": true, "ovs_version": true, "role": true, "status": true}

// concern reports whether the updates change a column that the switch reads. The switch's own writes
// do not.
func (u tableUpdates) concern() bool {
	for _, changes := range u {
		for _, r := range changes {
			if r.Modify == nil {
				return true
			}
			for column := range *r.Modify {
				if !written[column] {
					return true
				}
			}
		}
	}
	return false
}

// maxRows limits the rows of all tables together: 16 rows for each of 4,096 ports.
const maxRows = 1 << 16

// maxRowBytes limits the bytes of the values in all rows together.
const maxRowBytes = 128 << 20

// check returns an error if the rows exceed maxRows or maxRowBytes. The session then ends, and the
// switch keeps its configuration.
func (t tables) check() error {
	rows, bytes := 0, 0
	for _, list := range t {
		rows += len(list)
		for _, r := range list {
			for _, v := range r {
				bytes += v.bytes()
			}
		}
	}
	if rows > maxRows || bytes > maxRowBytes {
		return fmt.Errorf("%w: %d rows with %d bytes, expected at most %d with %d", errTooMuch, rows, bytes, maxRows, maxRowBytes)
	}
	return nil
}

// apply applies the changes of one transaction to the rows.
func (t tables) apply(s *schema, updates tableUpdates) error {
	for table, changes := range updates {
		if t[table] == nil {
			t[table] = map[uuid]row{}
		}
		for id, u := range changes {
			switch {
			case u.Initial != nil || u.Insert != nil:
				columns := u.Initial
				if columns == nil {
					columns = u.Insert
				}
				r := row{}
				if err := r.change(s, table, *columns); err != nil {
					return err
				}
				t[table][id] = r
			case u.Modify != nil:
				r := row{} // a copy, because a write-back may still compare with the old row
				for column, v := range t[table][id] {
					r[column] = v
				}
				if err := r.change(s, table, *u.Modify); err != nil {
					return err
				}
				t[table][id] = r
			default:
				delete(t[table], id)
			}
		}
	}
	return nil
}

func (r row) change(s *schema, table string, columns map[string]json.RawMessage) error {
	for column, text := range columns {
		v, err := decodeValue(text)
		if err != nil {
			return fmt.Errorf("table %s, column %s: %w", table, column, err)
		}
		r[column] = r[column].apply(v, s.several(table, column))
	}
	return nil
}

// root returns the row of Open_vSwitch, or nil if the database is not initialized.
func (t tables) root() (uuid, row) {
	for id, r := range t["Open_vSwitch"] {
		return id, r
	}
	return "", nil
}

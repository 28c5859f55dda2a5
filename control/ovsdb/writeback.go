// SPDX-License-Identifier: Apache-2.0

package ovsdb

import (
	"cmp"
	"fmt"
	"strconv"
	"time"

	"weft/api"
)

// transaction collects updates of the columns whose values in the database are outdated.
type transaction struct {
	rows   tables
	schema *schema
	ops    []any
}

// set adds an update of those columns of a row whose values in the database differ.
func (t *transaction) set(table string, id uuid, columns map[string]value) {
	changed := map[string]value{}
	for column, v := range columns {
		if _, has := t.schema.Tables[table].Columns[column]; has && !t.rows[table][id][column].equal(v) {
			changed[column] = v
		}
	}
	t.update(table, id, changed)
}

func (t *transaction) update(table string, id uuid, columns map[string]value) {
	if len(columns) > 0 {
		t.ops = append(t.ops, map[string]any{"op": "update", "table": table, "row": columns,
			"where": []any{[]any{"_uuid", "==", []string{"uuid", string(id)}}}})
	}
}

// writeBack writes the state of the switch to the database in one transaction. It sends nothing if the
// rows already have this state.
func (c *Client) writeBack(now time.Time) error {
	t := &transaction{rows: c.rows, schema: &c.schema}
	id, root := c.rows.root()
	next, _ := root.number("next_cfg")
	t.set("Open_vSwitch", id, map[string]value{
		"cur_cfg": one(next), "ovs_version": one(OVSVersion), "db_version": one(c.schema.Version),
		"iface_types": words(ifaceTypes), "datapath_types": words(datapathTypes),
	})
	for _, d := range root["datapaths"].pairs {
		if id, ok := d.(uuid); ok && c.rows["Datapath"][id] != nil {
			t.set("Datapath", id, map[string]value{"capabilities": mapOf(capabilities)})
		}
	}
	interval := time.Duration(root.milliseconds("other_config", "stats-update-interval", usualStats)) * time.Millisecond
	withStatistics := now.Sub(c.statsWritten) >= interval
	if withStatistics {
		c.statsWritten = now
	}
	c.writeBridges(t, now, withStatistics)
	present := c.portsByName()
	c.writeInterfaces(t, present, withStatistics)
	c.changed = c.changed || c.lacksUplink(present, now)
	return c.commit(t.ops)
}

// commit sends operations to the server as one transaction. The server refuses the transaction if
// the switch does not have the database's lock.
func (c *Client) commit(ops []any) error {
	if len(ops) == 0 {
		return nil
	}
	params := append([]any{database, map[string]any{"op": "assert", "lock": lockName}}, ops...)
	var results []struct {
		Error   string `json:"error"`
		Details string `json:"details"`
	}
	if err := c.session.call("transact", &results, params...); err != nil {
		return err
	}
	for _, r := range results {
		if r.Error != "" {
			// The rows may have been deleted meanwhile. The next write-back tries again.
			c.warn("transaction", fmt.Sprintf("%s %s", r.Error, r.Details))
			return nil
		}
	}
	delete(c.warned, "transaction")
	return c.takeNotifications() // the server sends the transaction's own update before its reply
}

func (c *Client) writeBridges(t *transaction, now time.Time, withStatistics bool) {
	present := map[string]api.Bridge{}
	for _, b := range c.setup.Switch.Bridges() {
		present[b.Name] = b
	}
	for i := range c.model.bridges {
		d := &c.model.bridges[i]
		b, there := present[d.name]
		if !there || c.rows["Bridge"][d.id] == nil {
			continue
		}
		t.set("Bridge", d.id, map[string]value{"datapath_id": one(b.DatapathID), "datapath_version": one(c.setup.Version)})
		states := c.setup.Switch.Controllers(d.name)
		for _, id := range c.rows["Bridge"][d.id].refs("controller") {
			r := c.rows["Controller"][id]
			if r == nil {
				continue
			}
			state, status := controllerStatus(r.text("target"), states, c.bridgeProblem[d.name], now)
			columns := map[string]value{"is_connected": one(state.Connected), "role": optional(state.Role)}
			if withStatistics || r.get("status", "state") != status["state"] || r.get("status", "last_error") != status["last_error"] {
				columns["status"] = mapOf(status) // the seconds in it alone do not justify a transaction each second
			}
			t.set("Controller", id, columns)
		}
	}
}

// controllerStatus returns the state of a controller, and the value of the column status in the
// words of ovs-vswitchd.conf.db(5). problem is the reason why the bridge could not get its
// controllers, or "".
func controllerStatus(target string, states map[string]Controller, problem string, now time.Time) (Controller, map[string]string) {
	if !connectable(target) {
		return Controller{}, map[string]string{"state": "VOID", "last_error": "expected tcp: or ssl:; tools use the socket BRIDGE.mgmt"}
	}
	state := states[withPort(target)]
	status := map[string]string{"state": "BACKOFF"}
	since := "sec_since_disconnect"
	if state.Connected {
		status["state"], since = "ACTIVE", "sec_since_connect"
	}
	if !state.Since.IsZero() {
		status[since] = strconv.FormatInt(int64(now.Sub(state.Since).Seconds()), 10)
	}
	if reason := cmp.Or(problem, state.Problem); reason != "" {
		status["last_error"] = reason
	}
	return state, status
}

func (c *Client) writeInterfaces(t *transaction, present map[string]*api.Port, withStatistics bool) {
	devices := c.kernel.devices()
	for i := range c.model.ports {
		d := &c.model.ports[i]
		if d.table == "Port" {
			if c.rows["Port"][d.id] != nil {
				t.set("Port", d.id, bondColumns(present[d.name], present, devices))
			}
			continue
		}
		if d.table == "Mirror" {
			if p := present[d.name]; p != nil && withStatistics && c.rows["Mirror"][d.id] != nil {
				c.setStatistics(t, "Mirror", d.id, mirrorStatistics(&p.Stats))
			}
			continue
		}
		if c.rows["Interface"][d.id] == nil {
			continue
		}
		p, why := present[d.name], d.problem
		if f := c.failed[d.name]; f != nil && why == "" {
			why = f.reason
		}
		if p == nil || why != "" {
			t.set("Interface", d.id, map[string]value{"error": one(cmp.Or(why, "not added yet")), "ofport": one(int64(-1)), "status": mapOf[string](nil),
				"mac_in_use": none(), "mtu": none(), "ifindex": none(), "admin_state": none(), "link_state": none(), "link_speed": none(),
				"duplex": none(), "bfd_status": mapOf[string](nil), "lacp_current": none()})
			continue
		}
		columns := interfaceColumns(p, devices)
		columns["lacp_current"] = lacpCurrent(p, present)
		t.set("Interface", d.id, columns)
		if withStatistics {
			c.setStatistics(t, "Interface", d.id, statistics(&p.Stats))
		}
	}
}

// setStatistics writes the column statistics if it has changed since the last write. The column is not
// monitored.
func (c *Client) setStatistics(t *transaction, table string, id uuid, s value) {
	if !s.equal(c.statistics[id]) {
		c.statistics[id] = s
		t.update(table, id, map[string]value{"statistics": s})
	}
}

// interfaceColumns returns the columns of table Interface that describe a port and its device.
func interfaceColumns(p *api.Port, devices map[string]device) map[string]value {
	status := map[string]string{"driver_name": "weft", "weft_type": p.Type, "weft_state": p.State}
	if p.Detail != "" {
		status["weft_detail"] = p.Detail
	}
	problem := ""
	if p.State == "failed" {
		problem = cmp.Or(p.Detail, "the port is set up again")
	}
	columns := map[string]value{"error": optional(problem), "ofport": one(int64(p.InFlows())), "bfd_status": bfdStatus(p),
		"mac_in_use": none(), "mtu": none(), "ifindex": none(), "link_speed": none(), "duplex": none()}
	if l := p.Link; l != nil {
		columns["duplex"] = optional(l.Duplex)
		if l.Mbps != 0 {
			columns["link_speed"] = one(int64(l.Mbps) * 1_000_000)
		}
	}
	up := p.State == "up"
	admin, link := p.Options["admin"] != "down", up
	name := cmp.Or(p.Options["dev"], p.Name)
	d, there := devices[name]
	switch p.Type {
	case "device", "tap", "local":
		if there {
			columns["mac_in_use"], columns["mtu"], columns["ifindex"] = optional(d.mac), one(int64(d.mtu)), one(int64(d.index))
			admin, link = d.adminUp, d.linkUp
			if d.peer != 0 {
				status["peer_ifindex"] = strconv.Itoa(d.peer)
			}
		}
	case "vhost-user":
		mtu := int64(1500)
		if n, err := strconv.ParseInt(p.Options["mtu"], 10, 32); err == nil {
			mtu = n
		}
		columns["mtu"] = one(mtu)
		status["mode"] = cmp.Or(p.Options["mode"], "server")
		status["socket"] = p.Options["path"]
	default:
		if len(p.Remotes) > 0 && p.Remotes[0].Device != "" {
			dev := p.Remotes[0].Device
			status["tunnel_egress_iface"], status["tunnel_egress_iface_carrier"] = dev, upDown(devices[dev].linkUp)
		}
	}
	columns["admin_state"], columns["link_state"] = one(upDown(admin)), one(upDown(link))
	columns["status"] = mapOf(status)
	return columns
}

func upDown(up bool) string {
	if up {
		return "up"
	}
	return "down"
}

// bfdStatus returns the value of the column bfd_status for a tunnel with one remote. For other ports it
// is empty.
func bfdStatus(p *api.Port) value {
	if len(p.Remotes) != 1 || p.Remotes[0].BFD == nil {
		return mapOf[string](nil)
	}
	b := p.Remotes[0].BFD
	return mapOf(map[string]string{"state": word(b.State), "remote_state": word(b.RemoteState), "diagnostic": b.Diagnostic,
		"remote_diagnostic": b.RemoteDiagnostic, "forwarding": strconv.FormatBool(b.State == "up")})
}

// word returns a BFD state in the spelling of Open vSwitch.
func word(state string) string {
	if state == "admin-down" {
		return "admin_down"
	}
	return state
}

// statistics returns the value of the column statistics of a port's row.
func statistics(s *api.PortStats) value {
	dropped := uint64(0)
	for _, n := range s.RxDrops {
		dropped += n
	}
	return mapOf(map[string]int64{
		"rx_packets": int64(s.RxPackets), "rx_bytes": int64(s.RxBytes), "rx_dropped": int64(dropped), "rx_errors": 0,
		"tx_packets": int64(s.TxPackets), "tx_bytes": int64(s.TxBytes), "tx_dropped": int64(s.TxDrops), "tx_errors": 0, "collisions": 0,
	})
}

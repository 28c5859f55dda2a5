// SPDX-License-Identifier: Apache-2.0

package ovn

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"
)

// chassis is a simulated host. To the southbound database, it behaves as ovn-controller does: it
// registers itself, monitors the rows that it needs, claims its ports, marks them as up, and reports
// the configuration number nb_cfg. It computes no flows.
type chassis struct {
	name    string
	number  int
	servers []string
	limit   time.Duration // time limit of one request
	wake    chan struct{} // a value here makes the session look for work

	mu        sync.Mutex       // guards the fields below
	ports     map[string]bool  // names of its ports
	bindings  map[string]*port // Port_Binding rows that the chassis has received for its ports, by UUID
	datapaths map[string]bool  // datapaths of its ports, by UUID
	id        string           // UUID of its row in Chassis
	nbCfg     float64          // newest value of nb_cfg in SB_Global
	reported  float64          // value of nb_cfg that the chassis has reported
	changed   bool             // ports have changed since the conditions of the monitors were set
	requests  int              // number of datapaths that the monitors' conditions name
	connected bool             // the monitors' first answers have arrived
	failures  int              // number of connections that have ended
	last      error
}

// port is a row of Port_Binding.
type port struct {
	name, datapath string
	claimed, up    bool
}

func newChassis(n int, servers []string, limit time.Duration) *chassis {
	return &chassis{name: fmt.Sprint("chassis", n), number: n, servers: servers, limit: limit, wake: make(chan struct{}, 1),
		ports: map[string]bool{}}
}

func (h *chassis) notify() {
	select {
	case h.wake <- struct{}{}:
	default:
	}
}

// add adds a port to the chassis, and remove removes it.
func (h *chassis) add(name string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ports[name], h.changed = true, true
	h.notify()
}

func (h *chassis) remove(name string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.ports, name)
	h.changed = true
	h.notify()
}

// run keeps a connection to one of the servers until ctx ends. When the connection ends, run connects
// to the next server.
func (h *chassis) run(ctx context.Context) {
	for n := h.number; ctx.Err() == nil; n++ {
		err := h.session(ctx, h.servers[n%len(h.servers)])
		h.mu.Lock()
		h.connected, h.last = false, err
		h.failures++
		h.mu.Unlock()
		select {
		case <-ctx.Done():
		case <-time.After(time.Second): // the same pause as ovn-controller's first
		}
	}
}

func (h *chassis) session(ctx context.Context, address string) error {
	h.mu.Lock()
	h.bindings, h.datapaths, h.requests = map[string]*port{}, map[string]bool{}, 0
	h.mu.Unlock()
	c, err := dial(address, h.update)
	if err != nil {
		return err
	}
	defer c.close()
	defer context.AfterFunc(ctx, c.close)()
	if err := h.register(c); err != nil {
		return err
	}
	if err := h.monitor(c); err != nil {
		return err
	}
	h.mu.Lock()
	h.connected = true
	h.mu.Unlock()
	h.notify()
	probe := time.NewTicker(5 * time.Second)
	defer probe.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-probe.C:
			if err := c.probe(h.limit); err != nil {
				return err
			}
		case <-h.wake:
			if err := h.step(c); err != nil {
				return err
			}
		}
	}
}

// register finds the chassis' row in the database, or inserts it.
func (h *chassis) register(c *client) error {
	found, err := c.transact(h.limit, southbound, map[string]any{"op": "select", "table": "Chassis", "where": condition("name", h.name), "columns": []string{"_uuid"}})
	if err != nil {
		return err
	}
	if rows, _ := found[0]["rows"].([]any); len(rows) > 0 {
		row, _ := rows[0].(map[string]any)
		h.mu.Lock()
		h.id, h.reported = uuidIn(row["_uuid"]), 0
		h.mu.Unlock()
		return nil
	}
	ip := fmt.Sprintf("10.100.%d.%d", h.number/256, h.number%256)
	results, err := c.transact(h.limit, southbound,
		map[string]any{"op": "insert", "table": "Encap", "uuid-name": "encap", "row": map[string]any{"type": "geneve", "ip": ip, "chassis_name": h.name}},
		map[string]any{"op": "insert", "table": "Chassis", "uuid-name": "chassis", "row": map[string]any{"name": h.name, "hostname": h.name, "encaps": named("encap")}},
		map[string]any{"op": "insert", "table": "Chassis_Private", "row": map[string]any{"name": h.name, "chassis": named("chassis")}})
	if err != nil {
		return err
	}
	h.mu.Lock()
	h.id = uuidIn(results[1]["uuid"])
	h.mu.Unlock()
	return nil
}

// monitor starts two OVSDB monitors. The monitor "own" has the rows that the simulated host uses: nb_cfg and
// the bindings of its ports. The monitor "unread" has the rows from which ovn-controller computes flows. The
// server sends these rows, but the client does not decode them.
func (h *chassis) monitor(c *client) error {
	all, none := []any{true}, []any{false}
	h.mu.Lock()
	own := h.portClauses()
	h.changed = false
	h.mu.Unlock()
	err := c.monitor(h.limit, southbound, "own", map[string]any{
		"SB_Global":    columns(all, "nb_cfg"),
		"Port_Binding": columns(own, "logical_port", "datapath", "chassis", "up"),
	})
	if err != nil {
		return err
	}
	return c.monitor(h.limit, southbound, unread, map[string]any{
		"Chassis":          columns(all, "name", "hostname", "encaps"),
		"Encap":            columns(all, "type", "ip", "chassis_name"),
		"Datapath_Binding": columns(none, "tunnel_key", "external_ids"),
		"Port_Binding":     columns(none, "logical_port", "datapath", "chassis", "mac", "tunnel_key", "type"),
		"Logical_Flow":     columns(none, "logical_datapath", "logical_dp_group", "pipeline", "table_id", "priority", "match", "actions"),
		"Multicast_Group":  columns(none, "datapath", "name", "ports", "tunnel_key"),
		"MAC_Binding":      columns(none, "datapath", "ip", "mac", "logical_port"),
	})
}

// portClauses returns the conditions that select the Port_Binding rows of the chassis' ports. The
// caller holds mu.
func (h *chassis) portClauses() []any {
	list := []any{}
	for _, name := range slices.Sorted(maps.Keys(h.ports)) {
		list = append(list, []any{"logical_port", "==", name})
	}
	if len(list) == 0 {
		return []any{false}
	}
	return list
}

// update stores changed rows from the server: the newest nb_cfg, and the Port_Binding rows of the ports
// of this chassis. It then wakes the goroutine that calls step.
func (h *chassis) update(_ string, changed tables) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, row := range changed["SB_Global"] {
		if n, ok := row.columns()["nb_cfg"].(float64); ok {
			h.nbCfg = n
		}
	}
	for id, row := range changed["Port_Binding"] {
		now := row.columns()
		if now == nil {
			delete(h.bindings, id)
			continue
		}
		p := h.bindings[id]
		if p == nil {
			p = &port{}
			h.bindings[id] = p
		}
		if name, ok := now["logical_port"].(string); ok {
			p.name = name
		}
		if d := uuidIn(now["datapath"]); d != "" {
			p.datapath = d
			h.datapaths[d] = true
		}
		if owner, has := now["chassis"]; has {
			p.claimed = uuidIn(owner) == h.id
		}
		if up, ok := now["up"].(bool); ok {
			p.up = up
		}
	}
	h.notify()
}

// step does the work that has become due. It extends the monitors to new ports and datapaths, claims
// ports, marks claimed ports as up, and reports the configuration number.
func (h *chassis) step(c *client) error {
	h.mu.Lock()
	ports, datapaths := h.portClauses(), []any{}
	morePorts, moreDatapaths := h.changed, h.requests != len(h.datapaths)
	h.changed, h.requests = false, len(h.datapaths)
	for _, d := range slices.Sorted(maps.Keys(h.datapaths)) {
		datapaths = append(datapaths, d)
	}
	var operations []any
	for id, p := range h.bindings {
		row := map[string]any{}
		switch {
		case !h.ports[p.name]:
			continue
		case !p.claimed:
			row["chassis"] = uuid(h.id)
		case !p.up:
			row["up"] = true
		default:
			continue
		}
		operations = append(operations, map[string]any{"op": "update", "table": "Port_Binding", "where": condition("_uuid", uuid(id)), "row": row})
	}
	if h.nbCfg != h.reported {
		h.reported = h.nbCfg
		operations = append(operations, map[string]any{"op": "update", "table": "Chassis_Private", "where": condition("name", h.name), "row": map[string]any{"nb_cfg": h.nbCfg}})
	}
	h.mu.Unlock()
	if morePorts {
		if err := c.change(h.limit, "own", map[string][]any{"Port_Binding": ports}); err != nil {
			return err
		}
	}
	if moreDatapaths {
		if err := c.change(h.limit, unread, conditions(datapaths)); err != nil {
			return err
		}
	}
	if len(operations) == 0 {
		return nil
	}
	_, err := c.transact(h.limit, southbound, operations...)
	return err
}

// conditions returns, for each table, the conditions that select the rows of the given datapaths.
func conditions(datapaths []any) map[string][]any {
	clauses := map[string][]any{}
	for _, d := range datapaths {
		for table, column := range map[string]string{"Datapath_Binding": "_uuid", "Port_Binding": "datapath", "Logical_Flow": "logical_datapath",
			"Multicast_Group": "datapath", "MAC_Binding": "datapath"} {
			clauses[table] = append(clauses[table], []any{column, "==", uuid(d.(string))})
		}
	}
	// Some flows belong to a group of datapaths. Their rows name the group instead of a datapath, so
	// the monitor takes all of them.
	clauses["Logical_Flow"] = append(clauses["Logical_Flow"], []any{"logical_dp_group", "!=", set([]any{})})
	return clauses
}

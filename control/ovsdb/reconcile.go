// SPDX-License-Identifier: Apache-2.0

package ovsdb

import (
	"maps"
	"slices"
	"strings"
	"time"

	"weft/api"
)

// Switch is the part of the switch that the database rules.
type Switch interface {
	// Bridges lists the bridges of add-br.
	Bridges() []api.Bridge
	AddBridge(add api.AddBridge) error
	ModifyBridge(name string, mod api.ModBridge) error
	DeleteBridge(name string) error
	// Ports lists all ports.
	Ports() []api.Port
	AddPort(name string, words []string) error
	ModifyPort(name string, words []string) error
	DeletePort(name string) error
	// Connected returns which controllers of a bridge are connected, by target.
	Connected(bridge string) map[string]bool
}

// retryInterval is the time after which a row that could not be done is tried again, for
// example because its device has appeared.
const retryInterval = 5 * time.Second

// failure is a port that could not be added or changed.
type failure struct {
	words  []string
	reason string
	tried  time.Time
	device bool // a device of the port's name was there
}

// uplinkPrefix begins the names of the uplinks that the reconciler adds for tunnels. Open
// vSwitch sends tunnels through the host's stack, so the database does not name uplinks.
const uplinkPrefix = "uplink-"

// isUplink reports whether the port carries tunnels. The database does not rule uplinks.
func isUplink(p *api.Port) bool {
	return p.Type == "uplink" || p.Type == "af_xdp" || p.Type == "af_packet"
}

// reconcile brings the switch into agreement with the model. A row that cannot be done is
// noted and does not hold up the others.
func (c *Client) reconcile(m *model, now time.Time) {
	present := c.portsByName()
	desired := map[string]*port{}
	for i := range m.ports {
		if p := &m.ports[i]; p.problem == "" {
			desired[p.name] = p
		}
	}
	for name := range c.failed {
		if desired[name] == nil {
			delete(c.failed, name)
		}
	}
	c.bridgeProblem = map[string]string{}
	c.deletePorts(present, desired)
	c.reconcileBridges(m)
	present = c.portsByName() // a deleted bridge has taken its ports along
	c.reconcileUplinks(m, present)
	for _, name := range slices.Sorted(maps.Keys(desired)) {
		c.reconcilePort(desired[name], present[name], now)
	}
}

func (c *Client) portsByName() map[string]*api.Port {
	present := map[string]*api.Port{}
	list := c.setup.Switch.Ports()
	for i := range list {
		present[list[i].Name] = &list[i]
	}
	return present
}

// deletePorts deletes the ports that the database does not name, and those that have another
// type or bridge there. The others can take their names and numbers then.
func (c *Client) deletePorts(present map[string]*api.Port, desired map[string]*port) {
	for _, name := range slices.Sorted(maps.Keys(present)) {
		p, d := present[name], desired[name]
		if isUplink(p) && d == nil || d != nil && !isUplink(p) && kept(p, d) {
			continue
		}
		c.deletePort(name)
		delete(present, name)
	}
}

// kept reports whether a port can become the desired one without its deletion.
func kept(p *api.Port, d *port) bool {
	for _, key := range []string{"type", "bridge", "ofport_request"} {
		if p.Options[key] != option(d.words, key) {
			return false
		}
	}
	return true
}

// option returns the value of a word KEY=VALUE.
func option(words []string, key string) string {
	for _, w := range words {
		if value, is := strings.CutPrefix(w, key+"="); is {
			return value
		}
	}
	return ""
}

func (c *Client) deletePort(name string) {
	if err := c.setup.Switch.DeletePort(name); err != nil {
		c.log.Error("a port of no row stays", "port", name, "error", err)
	}
}

// reconcileBridges deletes, adds and changes bridges.
func (c *Client) reconcileBridges(m *model) {
	desired := map[string]*bridge{}
	for i := range m.bridges {
		desired[m.bridges[i].name] = &m.bridges[i]
	}
	present := map[string]api.Bridge{}
	for _, b := range c.setup.Switch.Bridges() {
		d := desired[b.Name]
		if d != nil && (d.datapathID == "" || sameID(d.datapathID, b.DatapathID)) {
			present[b.Name] = b
			continue
		}
		if err := c.setup.Switch.DeleteBridge(b.Name); err != nil {
			c.log.Error("a bridge of no row stays", "bridge", b.Name, "error", err)
		}
	}
	for i := range m.bridges {
		d := &m.bridges[i]
		var err error
		b, there := present[d.name]
		switch {
		case !there:
			err = c.setup.Switch.AddBridge(api.AddBridge{Name: d.name, DatapathID: d.datapathID, FailMode: d.failMode, Controllers: d.controllers})
		case b.FailMode != d.failMode || !slices.Equal(slices.Sorted(slices.Values(b.Controllers)), d.controllers):
			controllers := append([]string{}, d.controllers...)
			err = c.setup.Switch.ModifyBridge(d.name, api.ModBridge{FailMode: d.failMode, Controllers: &controllers})
		}
		if err != nil {
			c.bridgeProblem[d.name] = err.Error()
			c.warn("bridge "+d.name, err.Error())
		}
	}
}

// sameID reports whether two datapath ids are equal; leading zeros do not count.
func sameID(a, b string) bool {
	return strings.EqualFold(strings.TrimLeft(a, "0"), strings.TrimLeft(b, "0"))
}

// reconcileUplinks gives each device through which a tunnel leaves an uplink.
func (c *Client) reconcileUplinks(m *model, present map[string]*api.Port) {
	taken := map[string]bool{} // devices with an uplink
	wanted := c.tunnelDevices(m)
	for name, p := range present {
		if !isUplink(p) {
			continue
		}
		dev := p.Options["dev"]
		if strings.HasPrefix(name, uplinkPrefix) && !slices.Contains(wanted, dev) {
			c.deletePort(name)
			delete(present, name)
			continue
		}
		taken[dev] = true
	}
	for _, dev := range wanted {
		if taken[dev] {
			continue
		}
		if err := c.setup.Switch.AddPort(uplinkPrefix+dev, []string{"type=uplink", "dev=" + dev}); err != nil {
			c.warn("uplink "+dev, err.Error())
		}
	}
}

// reconcilePort adds or changes a port. present is the port in the switch, or nil.
func (c *Client) reconcilePort(d *port, present *api.Port, now time.Time) {
	f := c.failed[d.name]
	if f != nil && slices.Equal(f.words, d.words) && now.Sub(f.tried) < retryInterval {
		return
	}
	if err := c.agreePort(d, present); err != nil {
		if f == nil || f.reason != err.Error() {
			c.log.Warn("a row cannot be done", "interface", d.name, "error", err)
		}
		_, there := c.kernel.devices()[d.name]
		c.failed[d.name] = &failure{d.words, err.Error(), now, there}
		return
	}
	delete(c.failed, d.name)
	if d.mtu == 0 || c.kernel.devices()[d.name].mtu == d.mtu {
		return
	}
	if err := c.kernel.setMTU(d.name, d.mtu); err != nil {
		c.warn("interface "+d.name, "mtu_request: "+err.Error())
	}
}

func (c *Client) agreePort(d *port, present *api.Port) error {
	if present == nil {
		return c.setup.Switch.AddPort(d.name, d.words)
	}
	changes := differences(present.Options, d.words)
	if len(changes) == 0 || c.setup.Switch.ModifyPort(d.name, changes) == nil {
		return nil
	}
	// The options cannot change while the port exists.
	if err := c.setup.Switch.DeletePort(d.name); err != nil {
		return err
	}
	return c.setup.Switch.AddPort(d.name, d.words)
}

// differences returns the words of mod-port that turn options into words.
func differences(options map[string]string, words []string) (changes []string) {
	for _, w := range words {
		key, value, _ := strings.Cut(w, "=")
		if has, had := options[key]; !had || has != value {
			changes = append(changes, w)
		}
	}
	for _, key := range slices.Sorted(maps.Keys(options)) {
		if option(words, key) == "" && key != "admin" && key != "flood" { // ovs-ofctl mod-port sets these
			changes = append(changes, key+"=")
		}
	}
	return changes
}

// warn logs a problem, once until it changes.
func (c *Client) warn(subject, reason string) {
	if c.warned[subject] != reason {
		c.warned[subject] = reason
		c.log.Warn("the database asks for what cannot be done", "subject", subject, "error", reason)
	}
}

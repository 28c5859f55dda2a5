// SPDX-License-Identifier: Apache-2.0

package ovsdb

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"weft/api"
)

// Switch has the bridges, ports and controllers of the switch, which the database configures.
type Switch interface {
	// Bridges lists the bridges that have a name.
	Bridges() []api.Bridge
	AddBridge(add api.AddBridge) error
	ModifyBridge(name string, mod api.ModBridge) error
	DeleteBridge(name string) error
	// Ports lists the ports of all bridges, including those that the database does not name.
	Ports() []api.Port
	// ChangePorts calls the function "change" once. All its changes of ports are one transaction of the
	// switch.
	ChangePorts(change func(ports PortChanges))
	// Controllers returns the states of a bridge's connections to controllers, by target such as
	// tcp:192.0.2.1:6653.
	Controllers(bridge string) map[string]Controller
	// SetCertificates sets the files for connections to controllers with ssl:. If files is nil, the
	// connections use the files of the switch's configuration.
	SetCertificates(files *SSL)
}

// SSL has the paths of files in PEM, from the row in table SSL, see ofconn.Certificates.
type SSL struct {
	Key, Cert, CA string
	Bootstrap     bool
}

// ssl returns the row of table SSL, or nil.
func (t tables) ssl() *SSL {
	_, root := t.root()
	for _, id := range root.refs("ssl") {
		if r := t["SSL"][id]; r != nil {
			return &SSL{Key: r.text("private_key"), Cert: r.text("certificate"), CA: r.text("ca_cert"), Bootstrap: r.truth("bootstrap_ca_cert")}
		}
	}
	return nil
}

// Controller is the state of the connection to a controller, see ofconn.ControllerState.
type Controller struct {
	Connected bool
	Role      string // role that the controller has: master, slave or other
	Since     time.Time
	Problem   string
}

// PortChanges changes ports in one transaction. Add and Modify may return no error although the
// change fails later, at the end of the transaction. onFailure then gets the error.
type PortChanges interface {
	Add(name string, words []string, onFailure func(error)) error
	Modify(name string, words []string, onFailure func(error)) error
	Delete(name string) error
	// Prefer sets the number that flows use for a port. The next Add of the port takes this number if no
	// other port has it.
	Prefer(bridge, name string, number uint32)
}

// retryInterval is the time after which the client tries again to add or change a port that failed. A
// later attempt may succeed, for example because the port's device exists by then.
const retryInterval = 5 * time.Second

// failure records why a port could not be added or changed, and when that was tried.
type failure struct {
	words  []string
	reason string
	tried  time.Time
	device bool // at the last attempt there was a device with the port's name
	// ofBridge is true if the port failed because its bridge is missing. The client tries the port
	// again as soon as the bridge exists.
	ofBridge bool
}

// uplinkPrefix begins the names of the uplinks that the reconciler adds for tunnels. Open
// vSwitch sends tunnels through the host's stack, so the database does not name uplinks.
const uplinkPrefix = "uplink-"

// isUplink reports whether the port is an uplink, which carries the datagrams of tunnels. The
// database does not configure uplinks.
func isUplink(p *api.Port) bool {
	return p.Type == "uplink" || p.Type == "af_xdp" || p.Type == "af_packet"
}

// reconcile changes the switch until it has the bridges and ports of m. It is one transaction if no
// bridge changes. If a port fails, reconcile records the failure and continues with the others.
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
	c.bridgeProblem, c.missingBridge = map[string]string{}, map[string]bool{}
	if c.bridgesDiffer(m) {
		c.setup.Switch.ChangePorts(func(ports PortChanges) { c.deletePorts(ports, present, desired) })
		c.reconcileBridges(m)
		present = c.portsByName() // deleting a bridge has deleted its ports
	}
	results := map[*port]error{}
	c.setup.Switch.ChangePorts(func(ports PortChanges) {
		c.deletePorts(ports, present, desired)
		c.reconcileUplinks(ports, m, present)
		c.reconcilePorts(ports, desired, present, results, now)
	})
	for d, err := range results {
		c.finishPort(d, err, now)
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

// deletePorts deletes the ports that the database does not have. It also deletes the ports whose
// type, bridge or requested number differ in the database. Ports that are added later can then have
// the names and numbers of deleted ports.
func (c *Client) deletePorts(ports PortChanges, present map[string]*api.Port, desired map[string]*port) {
	for _, name := range slices.Sorted(maps.Keys(present)) {
		p, d := present[name], desired[name]
		if isUplink(p) && d == nil || d != nil && !isUplink(p) && kept(p, d) {
			continue
		}
		c.deletePort(ports, name)
		delete(present, name)
	}
}

// kept reports whether a change of options can turn port p into the desired port d. Otherwise p is
// deleted and added again.
func kept(p *api.Port, d *port) bool {
	for _, key := range []string{"type", "bridge", "ofport_request"} {
		if p.Options[key] != option(d.words, key) {
			return false
		}
	}
	return true
}

// option returns the value of the word KEY=VALUE with this key, or "".
func option(words []string, key string) string {
	for _, w := range words {
		if value, is := strings.CutPrefix(w, key+"="); is {
			return value
		}
	}
	return ""
}

func (c *Client) deletePort(ports PortChanges, name string) {
	if err := ports.Delete(name); err != nil {
		c.log.Error("a port of no row stays", "port", name, "error", err)
	}
}

// bridgesDiffer reports whether the bridges of the switch, or their settings, differ from those in
// m.
func (c *Client) bridgesDiffer(m *model) bool {
	present := map[string]api.Bridge{}
	for _, b := range c.setup.Switch.Bridges() {
		present[b.Name] = b
	}
	return len(present) != len(m.bridges) || slices.ContainsFunc(m.bridges, func(d bridge) bool {
		b, there := present[d.name]
		return !there || !d.continues(&b) || !d.agrees(&b)
	})
}

// continues reports whether a change of settings can turn the switch's bridge b into the desired
// bridge. Otherwise the bridge is deleted and added again.
func (d *bridge) continues(b *api.Bridge) bool {
	return d.datapathID == "" || sameID(d.datapathID, b.DatapathID)
}

// agrees reports whether the bridge has the desired fail mode and controllers.
func (d *bridge) agrees(b *api.Bridge) bool {
	return b.FailMode == d.failMode && slices.Equal(slices.Sorted(slices.Values(b.Controllers)), d.controllers)
}

// reconcileBridges changes the bridges of the switch until they agree with those in m. First it
// deletes the bridges that are not in m, or have another datapath ID there. Then it adds or changes
// the others. It logs the error of a bridge and continues.
func (c *Client) reconcileBridges(m *model) {
	desired := map[string]*bridge{}
	for i := range m.bridges {
		desired[m.bridges[i].name] = &m.bridges[i]
	}
	present := map[string]api.Bridge{}
	for _, b := range c.setup.Switch.Bridges() {
		d := desired[b.Name]
		if d != nil && d.continues(&b) {
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
		case !d.agrees(&b):
			controllers := append([]string{}, d.controllers...)
			err = c.setup.Switch.ModifyBridge(d.name, api.ModBridge{FailMode: d.failMode, Controllers: &controllers})
		}
		if err != nil {
			c.bridgeProblem[d.name], c.missingBridge[d.name] = err.Error(), !there
			c.warn("bridge "+d.name, err.Error())
		}
	}
}

// sameID reports whether two datapath IDs are equal apart from leading zeros.
func sameID(a, b string) bool {
	return strings.EqualFold(strings.TrimLeft(a, "0"), strings.TrimLeft(b, "0"))
}

// reconcileUplinks adds an uplink for each network device through which a tunnel sends. It deletes
// an uplink that it has added if no tunnel uses the device any more.
func (c *Client) reconcileUplinks(ports PortChanges, m *model, present map[string]*api.Port) {
	taken := map[string]bool{} // devices that have an uplink
	wanted := c.tunnelDevices(m)
	for name, p := range present {
		if !isUplink(p) {
			continue
		}
		dev := p.Options["dev"]
		if strings.HasPrefix(name, uplinkPrefix) && !slices.Contains(wanted, dev) {
			c.deletePort(ports, name)
			delete(present, name)
			continue
		}
		taken[dev] = true
	}
	for _, dev := range wanted {
		if taken[dev] {
			continue
		}
		warn := func(err error) { c.warn("uplink "+dev, err.Error()) }
		if err := ports.Add(uplinkPrefix+dev, []string{"type=uplink", "dev=" + dev}, warn); err != nil {
			warn(err)
		}
	}
}

// lacksUplink reports whether the route to a tunnel's remote leads to a device without an uplink,
// for example because the device has a new address. It reports each device only once in
// retryInterval, because some devices cannot be uplinks.
func (c *Client) lacksUplink(present map[string]*api.Port, now time.Time) (lacks bool) {
	maps.DeleteFunc(c.uplinkAsked, func(_ string, since time.Time) bool { return now.Sub(since) >= retryInterval })
	taken := map[string]bool{}
	for _, p := range present {
		if isUplink(p) {
			taken[p.Options["dev"]] = true
		}
	}
	for _, p := range present {
		for i := range p.Remotes {
			dev := p.Remotes[i].Device
			if _, known := c.uplinkAsked[dev]; dev == "" || taken[dev] || known {
				continue
			}
			c.uplinkAsked[dev], lacks = now, true
		}
	}
	return lacks
}

// reconcilePorts adds and changes ports until the switch has the desired ones. presentPorts has the
// ports of the switch. "results" gets the result of each port, except for failed ports that are not
// yet due for another attempt.
func (c *Client) reconcilePorts(ports PortChanges, desired map[string]*port, presentPorts map[string]*api.Port, results map[*port]error, now time.Time) {
	var missing []*port
	for _, name := range slices.Sorted(maps.Keys(desired)) {
		d, p := desired[name], presentPorts[name]
		if c.missingBridge[d.bridge] { // the log has the bridge's problem; the port's row gets the reason
			c.failed[name] = &failure{words: d.words, reason: c.bridgeProblem[d.bridge], tried: now, device: true, ofBridge: true}
			continue
		}
		if f := c.failed[name]; f != nil && !f.ofBridge && slices.Equal(f.words, d.words) && now.Sub(f.tried) < retryInterval {
			continue
		}
		results[d] = nil
		if p != nil {
			changes := differences(p.Options, d.words)
			if len(changes) == 0 || ports.Modify(name, changes, func(err error) { results[d] = err }) == nil {
				continue
			}
			// These options cannot change while the port exists, so the port is deleted and added again.
			if results[d] = ports.Delete(name); results[d] != nil {
				continue
			}
		}
		missing = append(missing, d)
	}
	// Ports are added last, because a new port may need the number or the device of a deleted one. If
	// the column ofport already has a number, the port gets this number again if possible, because
	// flows contain it.
	for _, d := range missing {
		if d.ofport > 0 {
			ports.Prefer(d.bridge, d.name, d.ofport)
		}
	}
	for _, d := range missing {
		if err := ports.Add(d.name, d.words, func(err error) { results[d] = err }); err != nil {
			results[d] = err
		}
	}
}

// finishPort records and logs why a port failed. If the port succeeded, it sets the MTU of the port's
// device.
func (c *Client) finishPort(d *port, err error, now time.Time) {
	if err != nil {
		_, there := c.kernel.devices()[d.name]
		if !there && option(d.words, "type") == "device" { // scripts and tests search for ovs-vswitchd's words
			err = fmt.Errorf("could not open network device %s: %w", d.name, err)
		}
		if f := c.failed[d.name]; f == nil || f.reason != err.Error() {
			c.log.Warn("a row cannot be done", "interface", d.name, "error", err)
		}
		c.failed[d.name] = &failure{words: d.words, reason: err.Error(), tried: now, device: there}
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

// differences returns the changes of options (for mod-port) after which the port has exactly the
// options optionWords.
func differences(options map[string]string, optionWords []string) (changes []string) {
	for _, w := range optionWords {
		key, value, _ := strings.Cut(w, "=")
		if has, had := options[key]; !had || has != value {
			changes = append(changes, w)
		}
	}
	for _, key := range slices.Sorted(maps.Keys(options)) {
		if option(optionWords, key) == "" && key != "admin" && key != "flood" { // ovs-ofctl mod-port sets these two
			changes = append(changes, key+"=")
		}
	}
	return changes
}

// warn logs a problem. For each subject, it logs again only when the reason changes.
func (c *Client) warn(subject, reason string) {
	if c.warned[subject] != reason {
		c.warned[subject] = reason
		c.log.Warn("the database asks for what cannot be done", "subject", subject, "error", reason)
	}
}

// SPDX-License-Identifier: Apache-2.0

package control

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"sync"

	"weft/api"
	"weft/control/limits"
	"weft/control/ofconn"
	"weft/control/pipeline"
	"weft/control/store"
	"weft/control/tables"
	"weft/control/usererr"
	"weft/openflow"
)

// bridge is a bridge with its handlers. The first bridge, with number 0, is always there.
type bridge struct {
	number uint8
	name   string // "": the first bridge without --name
	id     uint64 // datapath id of add-br; 0: derived
	pipe   *pipeline.Bridge
	tables *tables.Tables
	socket string // path of the OpenFlow socket; "": none
	wire   *ofconn.Service
	stop   context.CancelFunc
	done   sync.WaitGroup
}

// bridges is the set of bridges. The configuration lock guards additions and removals. No lock
// is taken under mu.
type bridges struct {
	mu   sync.RWMutex
	list []*bridge // by number, the first one at 0
}

// bridgeName matches valid names of bridges. These are valid names of network devices,
// because the device LOCAL may have the bridge's name.
var bridgeName = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9_.-]{0,14}$`)

// maxBridgeName is the length of the longest name of a bridge (IFNAMSIZ less 1).
const maxBridgeName = 15

func (s *bridges) snapshot() []*bridge {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return slices.Clone(s.list)
}

// named returns the bridge of the name; "" names the first one.
func (s *bridges) named(name string) *bridge {
	s.mu.RLock()
	defer s.mu.RUnlock()
	for _, b := range s.list {
		if b.name == name || name == "" {
			return b
		}
	}
	return nil
}

// withNumber returns the bridge with a number, or nil.
func (s *bridges) withNumber(number uint8) *bridge {
	s.mu.RLock()
	defer s.mu.RUnlock()
	i := slices.IndexFunc(s.list, func(b *bridge) bool { return b.number == number })
	if i < 0 {
		return nil
	}
	return s.list[i]
}

func (s *bridges) insert(b *bridge) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.list = append(slices.Clone(s.list), b)
	slices.SortFunc(s.list, func(a, b *bridge) int { return int(a.number) - int(b.number) })
}

func (s *bridges) remove(b *bridge) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.list = slices.DeleteFunc(slices.Clone(s.list), func(o *bridge) bool { return o == b })
}

// BridgeNumber implements ports.Bridges.
func (s *bridges) BridgeNumber(name string) (uint8, bool) {
	if b := s.named(name); b != nil {
		return b.number, true
	}
	return 0, false
}

// LimitRows is a limits.Source: the rows of all bridges' connections, summed, because each
// pair of name and holder has one row.
func (s *bridges) LimitRows(emit func(limits.Row)) {
	type key struct {
		name   string
		holder limits.Holder
	}
	sums, order := map[key]limits.Row{}, []key{}
	for _, b := range s.snapshot() {
		b.wire.LimitRows(func(r limits.Row) {
			k := key{r.Name, r.Holder}
			sum, there := sums[k]
			if !there {
				order = append(order, k)
				sums[k] = r
				return
			}
			sum.Used, sum.Limit, sum.Refused = sum.Used+r.Used, sum.Limit+r.Limit, sum.Refused+r.Refused
			sums[k] = sum
		})
	}
	for _, k := range order {
		emit(sums[k])
	}
}

func (d *Daemon) noBridge(name string) error {
	var names []string
	for _, b := range d.bridges.snapshot() {
		if b.name != "" {
			names = append(names, b.name)
		}
	}
	if len(names) == 0 {
		return usererr.Errorf("%s: no such bridge; there are none, see add-br", name)
	}
	return usererr.Errorf("%s: no such bridge; expected one of %v", name, names)
}

// restoreBridges makes the saved bridges, before the ports and flows are loaded. A bridge
// whose socket cannot be made stays without connections. The caller holds the configuration
// lock.
func (d *Daemon) restoreBridges(saved []store.Bridge) error {
	for _, s := range saved {
		if s.Number == 0 {
			d.restoreFirst(&s)
			continue
		}
		if s.Name == d.config.Name {
			return usererr.Errorf("name %s: a bridge of add-br has this name; expected another", s.Name)
		}
		c, err := d.listenFor(&s)
		if err != nil {
			d.log.Error("a bridge has no OpenFlow connections", "bridge", s.Name, "error", err)
			c = connections{}
		}
		d.enterBridge(s, c)
	}
	return nil
}

// connections has the settings of a bridge's OpenFlow connections, with their listeners.
type connections struct {
	OpenFlow
	listeners []net.Listener
	tls       *tls.Config
}

// listenFor makes the listeners of a bridge.
func (d *Daemon) listenFor(s *store.Bridge) (c connections, err error) {
	c.OpenFlow = OpenFlow{Controllers: s.Controllers, Certs: d.config.OpenFlow.Certs, Standalone: s.FailMode == api.FailStandalone,
		DatapathID: s.DatapathID}
	if d.config.OpenFlow.Socket != "" {
		c.Socket = filepath.Join(filepath.Dir(d.config.OpenFlow.Socket), s.Name+".mgmt")
	}
	c.listeners, c.tls, err = openFlowSetup(&c.OpenFlow, d.policy)
	return c, err
}

// enterBridge adds a bridge to the switch. The caller holds the configuration lock.
func (d *Daemon) enterBridge(s store.Bridge, c connections) *bridge {
	b := &bridge{number: s.Number, name: s.Name, id: s.DatapathID, socket: c.Socket}
	d.handle(b, d.pipeline.AddBridge(s.Number), &c)
	return b
}

// handle gives a bridge its tables and its service, and shows it to requests.
func (d *Daemon) handle(b *bridge, p *pipeline.Bridge, c *connections) {
	b.pipe, b.tables = p, tables.New(&d.change, p)
	d.connect(b, c)
	d.controllerFrames.Attach(p, b.wire)
	d.bridges.insert(b)
}

// start begins to serve the connections of a bridge, until ctx ends.
func (b *bridge) start(ctx context.Context) {
	ctx, b.stop = context.WithCancel(ctx)
	b.done.Go(func() { b.wire.Run(ctx) })
}

func (d *Daemon) describeBridge(b *bridge) api.Bridge {
	f := b.wire.Following()
	return api.Bridge{Name: b.name, First: b.number == 0, OpenFlowSocket: b.socket, DatapathID: fmt.Sprintf("%016x", b.wire.DatapathID()), FailMode: failMode(f.Standalone),
		Controllers: f.Controllers, Configured: d.configured(b), Ports: len(b.pipe.View().Ports()), Flows: b.pipe.Flows()}
}

// listBridges describes the bridges that have a name.
func (d *Daemon) listBridges() []api.Bridge {
	list := []api.Bridge{}
	for _, b := range d.bridges.snapshot() {
		if b.name != "" {
			list = append(list, d.describeBridge(b))
		}
	}
	return list
}

// addBridge adds a bridge. On an error nothing has changed.
func (d *Daemon) addBridge(add api.AddBridge) (api.Bridge, error) {
	s, err := checkBridge(&add)
	if err != nil {
		return api.Bridge{}, err
	}
	d.bridging.Lock() // one change of bridges at a time
	defer d.bridging.Unlock()
	if old := d.bridges.named(add.Name); old != nil {
		if add.MayExist {
			return d.describeBridge(old), nil
		}
		return api.Bridge{}, usererr.Errorf("%s: the bridge exists; expected another name, or --may-exist", add.Name)
	}
	for s.Number = 1; d.bridges.withNumber(s.Number) != nil; {
		if s.Number++; s.Number == openflow.MaxBridges {
			return api.Bridge{}, usererr.Errorf("%s: expected at most %d bridges", add.Name, openflow.MaxBridges)
		}
	}
	c, err := d.listenFor(&s)
	if err != nil {
		return api.Bridge{}, err
	}
	d.change.Lock()
	defer d.change.Unlock()
	if err := d.store.SaveBridge(s); err != nil {
		for _, l := range c.listeners {
			l.Close()
		}
		return api.Bridge{}, fmt.Errorf("state: %w", err)
	}
	b := d.enterBridge(s, c)
	d.pipeline.PortsChanged() // megaflows of several bridges match in_port
	b.start(d.running)
	d.log.Info("bridge added", "bridge", b.name, "number", b.number)
	return d.describeBridge(b), nil
}

// checkBridge checks a request.
func checkBridge(add *api.AddBridge) (s store.Bridge, err error) {
	s = store.Bridge{Name: add.Name, FailMode: add.FailMode, Controllers: add.Controllers}
	if len(add.Name) > maxBridgeName {
		return s, usererr.Errorf("bridge %q: name too long; expected at most %d characters, as of a network device", add.Name, maxBridgeName)
	}
	if !bridgeName.MatchString(add.Name) {
		return s, usererr.Errorf("bridge %q: expected a letter, then up to 14 letters, digits, or any of _ . -", add.Name)
	}
	if add.DatapathID != "" {
		if s.DatapathID, err = strconv.ParseUint(add.DatapathID, 16, 64); err != nil || s.DatapathID == 0 {
			return s, usererr.Errorf("datapath id %s: expected up to 16 hexadecimal digits, not all 0", add.DatapathID)
		}
	}
	return s, checkControllers(add.FailMode, add.Controllers)
}

// deleteBridge deletes a bridge with its ports, flows, groups and meters.
func (d *Daemon) deleteBridge(name string) error {
	d.bridging.Lock()
	defer d.bridging.Unlock()
	b := d.bridges.named(name)
	switch {
	case b == nil:
		return d.noBridge(name)
	case b.number == 0:
		return usererr.Errorf("%s: the bridge of weftd --name; expected one of add-br", name)
	}
	b.stop() // first, because its connections take the configuration lock
	b.done.Wait()
	d.controllerFrames.Detach(b.pipe)
	d.bridges.remove(b)
	d.change.Lock()
	defer d.change.Unlock()
	if err := d.ports.DeleteBridge(b.number); err != nil {
		return err
	}
	if err := d.pipeline.RemoveBridge(b.pipe); err != nil {
		return err
	}
	if err := d.store.DeleteBridge(b.number); err != nil {
		return fmt.Errorf("state: %w", err)
	}
	d.log.Info("bridge deleted", "bridge", b.name)
	return nil
}

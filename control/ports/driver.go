// SPDX-License-Identifier: Apache-2.0

package ports

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"sort"

	"weft/control/flowexport"
	"weft/control/pipeline"
	"weft/control/underlay"
	"weft/engine"
	"weft/internal/privilege"
	"weft/openflow/xlate"
	"weft/vhost"
)

// portDriver controls the device of a port, under a lock of its own. The methods fault,
// network and status may be called at any time. The other methods are called under the
// configuration lock.
type portDriver interface {
	// open opens the device of the port. If "device" is not nil, an earlier control process has left
	// the device in the engine. open then takes over its descriptors, even if it fails.
	open(device *engine.Kept) error
	// attach passes an open device to the engine. resume is true if an engine that used the device
	// has died. The next engine then finds out from the rings in memory where the dead engine
	// stopped.
	attach(resume bool) error
	// fault is called after the workers have stopped using the device, for the given reason. It
	// returns true if the driver handles this itself. Otherwise the caller closes the device, and
	// retryPorts opens it again.
	fault(reason string) (mended bool)
	// network is called after links, addresses or tunnel endpoints of the host have changed. endpoints
	// has all present local endpoints of tunnels.
	network(endpoints []netip.AddrPort)
	status() portStatus
	// close detaches the device from the engine and frees what open has made.
	close()
}

// portStatus has the fields of api.Port that a driver sets.
type portStatus struct{ state, detail, mode, reason string }

// Values of api.Port.State.
const (
	StateUp      = "up"
	stateDown    = "down"    // the device exists but forwards no frames
	stateWaiting = "waiting" // the front end of the guest has not connected, or its driver is not ready
	stateFailed  = "failed"  // no open device; control opens it again later
)

// portKind describes one value of the option type=.
type portKind struct {
	options optionTable
	kind    xlate.PortKind
	make    func(c portContext) portDriver
}

// portKinds maps the value of type= to the kind of port. Each kind adds its entry in
// its own file.
var portKinds = map[string]portKind{}

// allOptions returns the options of this kind of port: its own, and those that several kinds have.
// Uplinks have only their own. Mirrors and exporters also have the bridge's option. Patch ports and
// bonds have no queues, no policing and no weight. Tunnels have no weight, because the time of their
// frames counts for the uplink.
func (k *portKind) allOptions() optionTable {
	if k.kind == xlate.PortUplink {
		return k.options
	}
	all := maps.Clone(k.options)
	if k.kind.Hidden() {
		maps.Copy(all, bridgeOptions)
		return all
	}
	maps.Copy(all, vlanOptions)
	maps.Copy(all, adminOptions)
	maps.Copy(all, bridgeOptions)
	virtual := k.kind == xlate.PortPatch || k.kind == xlate.PortBond
	if !virtual {
		maps.Copy(all, qosOptions)
	}
	if !virtual && k.kind != xlate.PortTunnel {
		maps.Copy(all, weightOptions)
	}
	maps.Copy(all, numberOptions)
	return all
}

func kindNames() []string {
	var names []string
	for name := range portKinds {
		names = append(names, name)
	}
	sort.Strings(names)
	return names
}

// portContext has what a driver knows about its port, and the parts of the daemon that a driver
// uses.
type portContext struct {
	number  uint32
	name    string
	kind    string
	values  map[string]string // options, with defaults
	log     *slog.Logger
	engine  Engine
	offload *pipeline.Pipeline // forwards flows between devices in the kernel
	// held returns the reason why engines do not get the port for now; nil: they get it.
	held   func(number uint32) error
	guests *vhost.MemoryPool // memory that guests have mapped
	open   *sessions
	// pack adds to the device's state which driver was chosen. The method keep calls it before it
	// stores the state in the engine. If pack is nil, keep stores the state unchanged.
	pack      func(device []byte) ([]byte, error)
	exporters *flowexport.Service
	// remotes counts the remote endpoints of the port by their state.
	remotes func(number uint32) underlay.Summary
}

// KeepKey returns the name under which the engine stores the device of a port for the next control
// process.
func KeepKey(number uint32) string { return fmt.Sprintf("port/%d", number) }

// ExtrasKey returns the name under which the engine stores more descriptors of a port's device. They
// are not stored under KeepKey, because earlier versions refuse a device with descriptors that they
// do not know. Earlier versions ignore this name.
func ExtrasKey(number uint32) string { return KeepKey(number) + "/extras" }

// PartKey returns the name under which the engine stores part n of a port's device. n is at least 1,
// because part 0 is stored under KeepKey. Earlier versions ignore this name.
func PartKey(number uint32, n int) string { return fmt.Sprintf("%s/parts/%d", KeepKey(number), n) }

// permitted returns an error that names the port if this process lacks the capability n.
func (c *portContext) permitted(n privilege.Need) error {
	if err := n.Check(); err != nil {
		return fmt.Errorf("port %s: %w", c.name, err)
	}
	return nil
}

// keep stores a device in the engine, so that the next control process can take it over in the driver's
// method open.
func (c *portContext) keep(blob []byte, fds []int) error {
	client := c.engine.Client()
	if client == nil {
		return engine.ErrGone
	}
	if c.pack != nil {
		var err error
		if blob, err = c.pack(blob); err != nil {
			return err
		}
	}
	return client.Keep(KeepKey(c.number), blob, fds)
}

// keepExtras stores more descriptors of a device in the engine. The next control process gets them after
// the descriptors that keep has stored. If fds is empty, keepExtras deletes the stored descriptors.
func (c *portContext) keepExtras(fds []int) error {
	client := c.engine.Client()
	switch {
	case client == nil:
		return engine.ErrGone
	case len(fds) == 0:
		return client.Forget(ExtrasKey(c.number))
	}
	return client.Keep(ExtrasKey(c.number), nil, fds)
}

// keepPart stores part n of a device's state in the engine. The next control process gets it in
// engine.Kept.Parts.
func (c *portContext) keepPart(n int, blob []byte, fds []int) error {
	client := c.engine.Client()
	switch {
	case client == nil:
		return engine.ErrGone
	case n == 0:
		return c.keep(blob, fds)
	}
	return client.Keep(PartKey(c.number, n), blob, fds)
}

// forgetParts deletes parts 1 to n-1 of a device's state from the engine.
func (c *portContext) forgetParts(n int) {
	client := c.engine.Client()
	for i := 1; i < n && client != nil; i++ {
		_ = client.Forget(PartKey(c.number, i)) // error ignored: a dead engine keeps no state
	}
}

func (c *portContext) attach(spec []byte, fds []int, tunnel bool) error {
	if err := c.held(c.number); err != nil {
		return err
	}
	client := c.engine.Client()
	if client == nil {
		return engine.ErrGone
	}
	return client.Attach(engine.Attach{Port: c.number, Name: c.name, Kind: c.kind, Spec: spec, Tunnel: tunnel}, fds)
}

func (c *portContext) detach() (json.RawMessage, error) {
	client := c.engine.Client()
	if client == nil {
		return nil, engine.ErrGone
	}
	return client.Detach(c.number)
}

func (c *portContext) forget() {
	if client := c.engine.Client(); client != nil {
		_ = client.Forget(KeepKey(c.number)) // error ignored: a dead engine keeps no state
	}
}

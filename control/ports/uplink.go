// SPDX-License-Identifier: Apache-2.0

package ports

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"sync"

	"weft/afpacket"
	"weft/control/underlay"
	"weft/engine"
	"weft/openflow/xlate"
	"weft/xsk"
)

const kindUplink = "uplink"

func init() {
	portKinds[kindUplink] = portKind{
		kind: xlate.PortUplink,
		options: optionTable{
			"dev":    {required: true, check: deviceName},
			"queues": {check: numberIn(1, min(xsk.MaxQueues, afpacket.MaxQueues))},
			// offload=on lets the kernel forward known flows from tunnels to other devices. It needs
			// packet sockets.
			"offload": {value: "off", check: oneOf("on", "off")},
		},
		make: func(c portContext) portDriver { return &uplinkPort{portContext: c} },
	}
}

// uplinkDriver is a driver among which an uplinkPort chooses: xdpPort or packetPort.
type uplinkDriver interface {
	portDriver
	deviceFollower
}

// uplinkPort is the driver of type=uplink, which chooses another driver for its device. It chooses
// AF_XDP if the device's driver supports zero-copy and the port has no offload=on. Otherwise it
// chooses packet sockets. It chooses again each time the port is set up.
type uplinkPort struct {
	portContext
	mu     sync.Mutex // taken before the lock of the chosen driver
	chosen uplinkDriver
	reason string // why the driver was chosen, for the API
	noRing string // see packetPort; a new packetPort gets it
}

// keptChoice is the state of an uplinkPort. The engine stores it as JSON for the next control
// process.
type keptChoice struct {
	Kind   string          `json:"kind"` // option type= of the chosen driver
	Why    string          `json:"why"`
	Device json.RawMessage `json:"device"` // state of the chosen driver
}

// driver makes a driver for this port's device. kind is kindXDP or kindPacket. reason says why this
// driver is chosen.
func (p *uplinkPort) driver(kind, reason string) uplinkDriver {
	c := p.portContext
	c.kind, c.values = kind, maps.Clone(p.values)
	c.pack = func(device []byte) ([]byte, error) {
		return json.Marshal(keptChoice{Kind: kind, Why: reason, Device: device})
	}
	if kind == kindXDP {
		c.values["mode"] = xsk.ModeZeroCopy
		return &xdpPort{portContext: c}
	}
	return &packetPort{portContext: c, noRing: p.noRing}
}

func (p *uplinkPort) open(kept *engine.Kept) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if kept != nil {
		if err := p.inherit(kept); err == nil {
			return nil
		}
		kept.CloseFDs()
	}
	reason, err := p.tryZeroCopy()
	if err == nil {
		return nil
	}
	p.chosen, p.reason = p.driver(kindPacket, reason), reason
	if err := p.chosen.open(nil); err != nil {
		p.chosen = nil
		return fmt.Errorf("%w (%s)", err, reason)
	}
	return nil
}

// tryZeroCopy opens the device with AF_XDP in zero-copy mode. It does not try if the port has
// offload=on, or if the device's driver lacks this mode, because attaching an XDP program may take
// the link down. On an error, reason says why the port uses packet sockets instead.
func (p *uplinkPort) tryZeroCopy() (reason string, err error) {
	if p.values["offload"] == "on" {
		return "offload=on needs packet sockets, because XDP takes the datagrams first", errors.ErrUnsupported
	}
	offers, err := xsk.OffersZeroCopy(p.values["dev"])
	if err == nil && !offers {
		return "the driver has no AF_XDP zero-copy", errors.ErrUnsupported
	}
	p.reason = "the driver has AF_XDP zero-copy"
	p.chosen = p.driver(kindXDP, p.reason)
	if err = p.chosen.open(nil); err != nil {
		p.chosen = nil
		return "AF_XDP zero-copy is refused: " + err.Error(), err
	}
	return "", nil
}

// inherit takes over the device and the choice of driver from an earlier control process. If it
// returns an error, the caller closes the descriptors that are still in kept.
func (p *uplinkPort) inherit(kept *engine.Kept) error {
	var c keptChoice
	if err := json.Unmarshal(kept.Request.Blob, &c); err != nil {
		return err
	}
	if c.Kind != kindXDP && c.Kind != kindPacket {
		return fmt.Errorf("an uplink of kind %q is unknown", c.Kind)
	}
	inner := *kept
	inner.Request.Blob = c.Device
	kept.FDs = nil // the chosen driver owns the descriptors now, even if it fails
	driver := p.driver(c.Kind, c.Why)
	if err := driver.open(&inner); err != nil {
		return err
	}
	p.chosen, p.reason = driver, c.Why
	return nil
}

// current returns the chosen driver and the reason for the choice. The driver is nil if the port is not
// open.
func (p *uplinkPort) current() (uplinkDriver, string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.chosen, p.reason
}

func (p *uplinkPort) attach(resume bool) error {
	driver, _ := p.current()
	if driver == nil {
		return errors.New("the uplink is not open")
	}
	return driver.attach(resume)
}

func (p *uplinkPort) fault(reason string) bool {
	driver, _ := p.current()
	return driver != nil && driver.fault(reason)
}

func (p *uplinkPort) network(endpoints []netip.AddrPort) {
	if driver, _ := p.current(); driver != nil {
		driver.network(endpoints)
	}
}

// follow implements deviceFollower: the chosen driver checks its device.
func (p *uplinkPort) follow(u *underlay.Kernel) error {
	driver, _ := p.current()
	if driver == nil {
		return nil
	}
	return driver.follow(u)
}

// check implements deviceChecker. Only packet sockets can stop without an event.
func (p *uplinkPort) check() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	packets, ok := p.chosen.(*packetPort)
	if !ok {
		return nil
	}
	err := packets.check()
	if err != nil {
		p.noRing = err.Error()
	}
	return err
}

func (p *uplinkPort) status() portStatus {
	driver, reason := p.current()
	if driver == nil {
		return portStatus{state: stateFailed}
	}
	s := driver.status()
	if s.mode != "" {
		s.reason = reason + afterAsked(s.reason)
	}
	return s
}

// afterAsked removes the words "asked for" from the beginning of a driver's reason. They do not fit
// here, because the uplinkPort has chosen the driver.
func afterAsked(reason string) string { return reason[min(len(asked), len(reason)):] }

// asked is the reason of a driver for its mode, if the port's options have selected the mode.
const asked = "asked for"

func (p *uplinkPort) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.chosen != nil {
		p.chosen.close()
		p.chosen = nil
	}
}

// SPDX-License-Identifier: Apache-2.0

package ports

import (
	"net/netip"
	"sync/atomic"

	"weft/engine"
	"weft/openflow/xlate"
)

// kindPatch is a patch port: frames sent to it arrive at its peer, another patch port,
// usually of another bridge. It has no device. No worker knows it.
const kindPatch = "patch"

func init() {
	portKinds[kindPatch] = portKind{
		kind:    xlate.PortPatch,
		options: optionTable{"peer": {required: true, check: peerName}},
		make:    func(portContext) portDriver { return &patchPort{} },
	}
	changeable[kindPatch] = []string{"peer"}
}

func peerName(value string) string {
	if checkPortName(value) != nil {
		return "the name of the patch port at the other end"
	}
	return ""
}

// patchPort is the driver of a patch port.
type patchPort struct {
	trouble atomic.Pointer[string] // why no frame passes; nil: it has a peer
}

func (*patchPort) open(device *engine.Kept) error {
	if device != nil { // of an earlier port with the same number
		device.CloseFDs()
	}
	return nil
}

func (*patchPort) attach(bool) error          { return nil }
func (*patchPort) fault(string) bool          { return true }
func (*patchPort) network(_ []netip.AddrPort) {}
func (*patchPort) close()                     {}

func (p *patchPort) status() portStatus {
	if trouble := p.trouble.Load(); trouble != nil {
		return portStatus{state: stateDown, detail: *trouble}
	}
	return portStatus{state: StateUp}
}

// joinPatches connects patch ports that name each other. The caller holds the configuration
// lock.
func (ps *Ports) joinPatches() {
	byName := make(map[string]*switchPort, len(ps.byNumber))
	for _, p := range ps.byNumber {
		byName[p.saved.Name] = p
	}
	for _, p := range ps.byNumber {
		driver, ok := p.driver.(*patchPort)
		if !ok {
			continue
		}
		name := p.values["peer"]
		peer, trouble := byName[name], ""
		switch {
		case peer == nil:
			trouble = "peer " + name + " does not exist"
		case peer.kind != kindPatch || peer.values["peer"] != p.saved.Name:
			trouble = "peer " + name + " does not have peer=" + p.saved.Name
		}
		if p.info.Peer = 0; trouble != "" {
			driver.trouble.Store(&trouble)
			continue
		}
		p.info.Peer = peer.saved.Number
		driver.trouble.Store(nil)
	}
}

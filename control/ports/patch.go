// SPDX-License-Identifier: Apache-2.0

package ports

import (
	"net/netip"
	"sync/atomic"

	"weft/control/change"
	"weft/engine"
	"weft/openflow/xlate"
)

// kindPatch is a patch port. Frames that are sent to it arrive at its peer, another patch port,
// usually of another bridge. It has no device, and workers do not know it. The look-up of a frame
// continues at the peer and only outputs to the ports behind it.
const kindPatch = "patch"

func init() {
	portKinds[kindPatch] = portKind{
		kind:    xlate.PortPatch,
		options: optionTable{"peer": {required: true, check: peerName}},
		make:    func(portContext) portDriver { return &virtualPort{} },
	}
	changeable[kindPatch] = []string{"peer"}
}

func peerName(value string) string {
	if checkPortName(value) != nil {
		return "the name of the patch port at the other end"
	}
	return ""
}

// virtualPort is the driver of ports without a device: patch ports, bonds, mirrors and exporters. It
// only stores the reason why no frame passes.
type virtualPort struct {
	trouble atomic.Pointer[string] // reason why no frame passes; nil: frames pass
}

func (*virtualPort) open(device *engine.Kept) error {
	if device != nil { // device of an earlier port with the same number
		device.CloseFDs()
	}
	return nil
}

func (*virtualPort) attach(bool) error          { return nil }
func (*virtualPort) fault(string) bool          { return true }
func (*virtualPort) network(_ []netip.AddrPort) {}
func (*virtualPort) close()                     {}

// setTrouble stores the reason why no frame passes, which the method status returns. If text is "",
// frames pass.
func (p *virtualPort) setTrouble(text string) {
	if text == "" {
		p.trouble.Store(nil)
	} else {
		p.trouble.Store(&text)
	}
}

func (p *virtualPort) status() portStatus {
	if trouble := p.trouble.Load(); trouble != nil {
		return portStatus{state: stateDown, detail: *trouble}
	}
	return portStatus{state: StateUp}
}

// joinPatches stores the number of the peer in the PortInfo of each patch port, if both ports name
// each other. Look-ups of frames read it.
func (ps *Ports) joinPatches(*change.Tx) {
	byName := make(map[string]*switchPort, len(ps.byNumber))
	for _, p := range ps.byNumber {
		byName[p.saved.Name] = p
	}
	for _, p := range ps.byNumber {
		driver, ok := p.driver.(*virtualPort)
		if !ok || p.kind != kindPatch {
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
		driver.setTrouble(trouble)
		if p.info.Peer = 0; trouble == "" {
			p.info.Peer = peer.saved.Number
		}
	}
}

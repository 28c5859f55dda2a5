// SPDX-License-Identifier: Apache-2.0

package ports

import (
	"fmt"
	"maps"
	"slices"

	"weft/afpacket"
	"weft/openflow/xlate"
)

// kindDevice is a network device of the host as a port of a bridge: a network card, a VLAN
// device, a veth, a tap of another program. All frames that arrive at the device arrive at
// the port, and none at the kernel's stack. An uplink, in contrast, takes only tunnels.
const kindDevice = "device"

func init() {
	portKinds[kindDevice] = portKind{
		kind: xlate.PortNormal,
		options: optionTable{
			"dev":       {check: deviceName},
			"queues":    {value: "1", check: numberIn(1, afpacket.MaxQueues)},
			"vni":       memberVNI,
			bondOption:  memberBond,
			"id":        portID,
			"mac":       boundMACs,
			"addresses": boundAddresses,
			// offload=on lets the kernel forward known flows from this device to other devices.
			"offload": {value: "off", check: oneOf("on", "off")},
		},
		make: func(c portContext) portDriver {
			if c.values["dev"] == "" {
				c.values["dev"] = c.name
			}
			return &packetPort{portContext: c, takesAll: true}
		},
	}
	maps.Copy(portKinds[kindDevice].options, lacpMemberOptions)
	changeable[kindDevice] = append(slices.Sorted(maps.Keys(lacpMemberOptions)), bondOption, "vni", "id", "mac", "addresses")
}

// takesDevice returns the name of the host's device whose frames the port receives, or "". Two such
// ports conflict.
func (p *switchPort) takesDevice() string {
	if p.isUplink() || p.kind == kindDevice {
		return p.values["dev"]
	}
	return ""
}

// statusOfAll returns the status of a port of type=device whose device is up. The caller holds p.mu.
func (p *packetPort) statusOfAll() portStatus {
	st := portStatus{state: StateUp, mode: "packet", reason: "a port takes the frames of its device through packet sockets"}
	if why := p.uplink.InStack(); why != "" {
		st.reason += "; the kernel's stack sees each frame: " + why
	}
	if table, why := p.uplink.Flows(); table != nil {
		st.mode = "kernel"
		flows, connections := p.offload.Offloaded(p.number)
		st.reason = fmt.Sprintf("the kernel forwards known flows to other devices, now %d with %d connections; ", flows, connections) + st.reason
	} else if why != "" {
		st.reason += "; no known flow runs in the kernel: " + why
	}
	if n := p.uplink.Dropped(); n > 0 {
		st.detail = fmt.Sprintf("the kernel dropped %d frames, because a ring or a queue was full", n)
	}
	return st
}

// linkIndex returns the interface index of the port's device, or 0 if the port has no device now.
func (p *packetPort) linkIndex() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.uplink == nil || !p.takesAll {
		return 0
	}
	return p.uplink.Index()
}

// mtu implements mtuReader: it returns the MTU that the device has now.
func (p *packetPort) mtu() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.uplink == nil {
		return 0
	}
	return p.uplink.MTU()
}

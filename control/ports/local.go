// SPDX-License-Identifier: Apache-2.0

package ports

import (
	"weft/openflow"
	"weft/tap"
)

// kindLocal is the port LOCAL of flows: a tap of the host, named after the port. Open
// vSwitch makes it with each bridge; here it is an ordinary port, at most one.
const kindLocal = "local"

func init() {
	portKinds[kindLocal] = portKind{
		kind: openflow.PortNormal,
		options: optionTable{
			"mac":       {check: macAddress},
			"mtu":       {check: numberIn(68, tap.MaxMTU)},
			"vni":       memberVNI,
			"addresses": boundAddresses,
			"queues":    {value: "1", check: numberIn(1, tap.MaxQueues)},
			"offloads":  {value: "on", check: oneOf("on", "off")},
		},
		make: func(c portContext) portDriver { return &tapPort{portContext: c} },
	}
}

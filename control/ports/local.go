// SPDX-License-Identifier: Apache-2.0

package ports

import (
	"weft/openflow/xlate"
	"weft/tap"
)

// kindLocal is the kind of the port that flows call LOCAL: a tap in the host, whose device has the
// port's name. Open vSwitch makes such a port with each bridge. In Weft the user adds it like other
// ports, and a bridge has at most one.
const kindLocal = "local"

func init() {
	portKinds[kindLocal] = portKind{
		kind: xlate.PortNormal,
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

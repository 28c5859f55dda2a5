// SPDX-License-Identifier: Apache-2.0

package ports

import (
	"weft/control/change"
	"weft/control/usererr"
	"weft/openflow/xlate"
)

// The administrative state of a port, as mod-port of ovs-ofctl sets it. The state consists of two
// options, so that it is saved, exported and applied like other options.

// adminOptions are options of all ports except uplinks. The kernel owns an uplink's device, and ip link
// sets its state.
var adminOptions = optionTable{
	// admin=down: the port neither receives frames nor sends any.
	"admin": {check: oneOf("up", "down")},
	// flood=off: the actions normal and flood do not flood frames to the port.
	"flood": {check: oneOf("on", "off")},
}

// usualValues has, by option, the value that means the same as no option.
var usualValues = map[string]string{"admin": "up", "flood": "on", "weight": "1"}

func fillAdmin(info *xlate.PortInfo, values map[string]string) {
	info.Off, info.NoFlood = values["admin"] == "down", values["flood"] == "off"
}

// adminDown is what the API shows as the detail of a port with admin=down.
const adminDown = "down by admin=down"

// Admin is the administrative state of a port: OpenFlow's OFPPC_PORT_DOWN and OFPPC_NO_FLOOD.
type Admin struct{ Down, NoFlood bool }

// SetAdmin sets the options admin= and flood= of a port. It refuses uplinks, because ip link sets
// the state of their devices.
func (ps *Ports) SetAdmin(name string, set Admin) error {
	return ps.configuration.Update(func(tx *change.Tx) error {
		if p := ps.portByName(name); p != nil && p.info.Kind == xlate.PortUplink {
			return usererr.Errorf("port %s: an uplink, whose device the kernel keeps; expected ip link set", name)
		}
		words := []string{"admin=up", "flood=on"}
		if set.Down {
			words[0] = "admin=down"
		}
		if set.NoFlood {
			words[1] = "flood=off"
		}
		_, err := ps.modify(tx, name, words)
		return err
	})
}

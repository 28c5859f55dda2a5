// SPDX-License-Identifier: Apache-2.0

package ports

import (
	"weft/control/change"
	"weft/control/usererr"
	"weft/openflow/xlate"
)

// The administrative state of a port, as ovs-ofctl mod-port sets it. It is an option, so
// that it is saved, exported and applied like others.

// adminOptions are options of all ports but uplinks, whose device the kernel keeps.
var adminOptions = optionTable{
	// admin=down: the port neither takes frames nor sends any.
	"admin": {check: oneOf("up", "down")},
	// flood=off: normal and flood do not flood to the port.
	"flood": {check: oneOf("on", "off")},
}

// usualValues has the values that equal the absence of an option.
var usualValues = map[string]string{"admin": "up", "flood": "on", "weight": "1"}

func fillAdmin(info *xlate.PortInfo, values map[string]string) {
	info.Off, info.NoFlood = values["admin"] == "down", values["flood"] == "off"
}

// adminDown is the detail of a port with admin=down.
const adminDown = "down by admin=down"

// Admin is the administrative state of a port.
type Admin struct{ Down, NoFlood bool }

// SetAdmin changes the administrative state of a port.
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

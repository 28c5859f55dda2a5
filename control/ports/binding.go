// SPDX-License-Identifier: Apache-2.0

package ports

import (
	"strings"

	"weft/control/usererr"
	"weft/openflow"
)

// Options that bind a guest's port to addresses: the port may send only from the
// listed addresses.
var (
	boundMACs      = option{check: func(value string) string { return checkBinding(value, "") }}
	boundAddresses = option{check: func(value string) string { return checkBinding("", value) }}
)

func checkBinding(macs, addresses string) (expected string) {
	if strings.Trim(macs+addresses, ", ") == "" {
		return "a unicast MAC address, as in 02:00:00:00:00:01"
	}
	_, _, expected = openflow.ParseBinding(macs, addresses)
	return expected
}

// macAddress checks the MAC address of a tap's device.
func macAddress(value string) string {
	if strings.ContainsAny(value, ", ") {
		return "one unicast MAC address; addresses= binds a tap to several"
	}
	return checkBinding(value, "")
}

// fillBinding stores in info the addresses from which a port may send. Each value has
// been checked by itself; fillBinding returns an error if the options name too many
// addresses together. A tap is bound only if it has addresses=, and then also to the
// address of its device.
func fillBinding(info *openflow.PortInfo, kind string, values map[string]string) error {
	macs, addresses := values["mac"], values["addresses"]
	if kind == kindTap && (addresses == "" || openflow.NamesMAC(addresses, macs)) {
		macs = ""
	}
	b, wrong, expected := openflow.ParseBinding(macs, addresses)
	if expected != "" {
		return usererr.Errorf("addresses=%s: expected %s, mac= included", wrong, expected)
	}
	info.Binding = b
	return nil
}

// SPDX-License-Identifier: Apache-2.0

package ports

import (
	"strings"

	"weft/control/usererr"
	"weft/openflow/xlate"
)

// boundMACs and boundAddresses are the options mac= and addresses= of ports of guests. They restrict the
// addresses from which the guest may send frames.
var (
	boundMACs      = option{check: func(value string) string { return checkBinding(value, "") }}
	boundAddresses = option{check: func(value string) string { return checkBinding("", value) }}
)

func checkBinding(macs, addresses string) (expected string) {
	if strings.Trim(macs+addresses, ", ") == "" {
		return "a unicast MAC address, as in 02:00:00:00:00:01"
	}
	_, _, expected = xlate.ParseBinding(macs, addresses)
	return expected
}

// macAddress checks the value of the option mac= of a tap. It returns a description of valid values, or
// "" if the value is valid.
func macAddress(value string) string {
	if strings.ContainsAny(value, ", ") {
		return "one unicast MAC address; addresses= binds a tap to several"
	}
	return checkBinding(value, "")
}

// fillBinding stores the addresses from which a port may send frames in "info". It returns an error
// for too many addresses. A tap is only restricted if it has the option addresses=. The tap's own
// MAC address is always allowed.
func fillBinding(info *xlate.PortInfo, kind string, values map[string]string) error {
	macs, addresses := values["mac"], values["addresses"]
	if (kind == kindTap || kind == kindLocal) && (addresses == "" || xlate.NamesMAC(addresses, macs)) {
		macs = ""
	}
	b, wrong, expected := xlate.ParseBinding(macs, addresses)
	if expected != "" {
		return usererr.Errorf("addresses=%s: expected %s, mac= included", wrong, expected)
	}
	info.Binding = b
	return nil
}

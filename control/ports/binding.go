package ports

import (
	"strings"

	"weft/control/usererr"
	"weft/openflow"
)

// The options that bind a guest's port to addresses: what it may send as.
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

// macAddress checks the address of a tap's device.
func macAddress(value string) string {
	if strings.ContainsAny(value, ", ") {
		return "one unicast MAC address; addresses= binds a tap to several"
	}
	return checkBinding(value, "")
}

// fillBinding tells translation what a port may send as. Each value is checked for
// itself; together they may name too many addresses. A tap is bound by addresses=, to
// its device's own address too.
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

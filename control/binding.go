package control

import (
	"strings"

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

// fillBinding tells translation what a port may send as. Each value is checked for
// itself; together they may name an address twice, or too many.
func fillBinding(info *openflow.PortInfo, values map[string]string) error {
	b, wrong, expected := openflow.ParseBinding(values["mac"], values["addresses"])
	if expected != "" {
		return inputf("addresses=%s: expected %s, mac= included", wrong, expected)
	}
	info.Binding = b
	return nil
}

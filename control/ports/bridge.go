// SPDX-License-Identifier: Apache-2.0

package ports

import (
	"slices"
	"strings"

	"weft/control/usererr"
)

// bridgeOption names the bridge of a port. A port without the option is in the first bridge. An uplink
// is in no bridge, because the frames of its tunnels arrive at tunnel ports.
const bridgeOption = "bridge"

var bridgeOptions = optionTable{bridgeOption: {check: func(value string) string {
	if value == "" {
		return "a bridge's name, or no such option for the first bridge"
	}
	return ""
}}}

// bridgeNumber returns the number of the bridge that the options name, or an error if it does not exist.
func (ps *Ports) bridgeNumber(values map[string]string) (uint8, error) {
	name := values[bridgeOption]
	if name == "" {
		return 0, nil
	}
	if number, ok := ps.pipeline.BridgeNumber(name); ok {
		return number, nil
	}
	return 0, usererr.Errorf("bridge=%s: no such bridge; expected one of list-br, or add-br first", name)
}

// withoutFirst removes bridge= from a port's options if it names the first bridge. So the port stays in
// the first bridge when weftd --name gives this bridge another name.
func (ps *Ports) withoutFirst(options []string) []string {
	return slices.DeleteFunc(slices.Clone(options), func(word string) bool {
		name, is := strings.CutPrefix(word, bridgeOption+"=")
		number, ok := ps.pipeline.BridgeNumber(name)
		return is && ok && number == 0
	})
}

// inBridge returns the ports of the bridge with this number, in no order.
func (ps *Ports) inBridge(number uint8) (list []*switchPort) {
	for _, p := range ps.byNumber {
		if p.info.Bridge == number {
			list = append(list, p)
		}
	}
	return list
}

// SPDX-License-Identifier: Apache-2.0

package ports

import (
	"fmt"
	"strconv"
	"strings"

	"weft/control/change"
	"weft/control/underlay"
)

var encapOptions = optionTable{
	"udp_csum": {check: oneOf("on", "off")},
	"ttl":      {check: wordOr("inherit", numberIn(1, 255))},
	"tos":      {check: wordOr("inherit", trafficClass)},
	"df":       {check: oneOf("on", "off")},
	"src_port": {check: portRange},
}

// trafficClass checks the option tos=. The two ECN bits must be 0, because the encapsulation copies them
// from the inner frame.
func trafficClass(value string) string {
	if n, err := strconv.ParseUint(value, 0, 8); err != nil || n&3 != 0 {
		return "a multiple of 4 from 0 to 252"
	}
	return ""
}

func portRange(value string) string {
	if _, _, ok := parsePortRange(value); !ok {
		return "two port numbers from 1 to 65535, as in 49152-65535"
	}
	return ""
}

func parsePortRange(value string) (base, count uint16, ok bool) {
	low, high, ok := strings.Cut(value, "-")
	a, errA := strconv.ParseUint(low, 10, 16)
	z, errZ := strconv.ParseUint(high, 10, 16)
	if !ok || errA != nil || errZ != nil || a == 0 || z < a {
		return 0, 0, false
	}
	return uint16(a), uint16(z - a + 1), true // at most 65535 ports, so the number fits
}

// parseEncap returns the options of a tunnel's outer headers. The option table has already checked the
// values.
func parseEncap(values map[string]string) underlay.Encap {
	o := underlay.Encap{Checksum: values["udp_csum"], DontFragment: values["df"] == "on", Dev: values["dev"]}
	o.Kind = tunnelKind(values)
	o.InheritTTL, o.InheritTOS = values["ttl"] == "inherit", values["tos"] == "inherit"
	ttl, _ := strconv.ParseUint(values["ttl"], 10, 8)
	tos, _ := strconv.ParseUint(values["tos"], 0, 8)
	o.TTL, o.TOS = uint8(ttl), uint8(tos)
	o.PortBase, o.PortRange, _ = parsePortRange(values["src_port"])
	if o.Kind.HasPort() {
		return o
	}
	o.Checksum = "off" // GRE has no checksum unless csum=on asks for it, over IPv6 neither
	if values["csum"] == "on" {
		o.Checksum = "on"
	}
	o.Key, o.Sequence = values["key"] != "", values["seq"] == "on"
	index, _ := strconv.ParseUint(values["erspan_idx"], 0, 20)
	hwid, _ := strconv.ParseUint(values["erspan_hwid"], 0, 6)
	o.Index, o.HardwareID, o.Egress = uint32(index), uint8(hwid), values["erspan_dir"] == "1"
	return o
}

// encaps returns the options for the outer headers of all tunnels, by port number.
func (ps *Ports) encaps(*change.Tx) map[uint32]underlay.Encap {
	m := map[uint32]underlay.Encap{}
	for no, p := range ps.byNumber {
		if p.isTunnel() {
			m[no] = parseEncap(p.values)
		}
	}
	return m
}

// numberOrHex returns the check of an option whose value is a decimal or hexadecimal number of at most
// limit.
func numberOrHex(limit uint64) func(string) string {
	return func(value string) string {
		if n, err := strconv.ParseUint(value, 0, 32); err != nil || n > limit {
			return fmt.Sprintf("a number from 0 to %d", limit)
		}
		return ""
	}
}

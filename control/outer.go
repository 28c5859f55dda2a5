package control

import (
	"net/netip"
	"strconv"
	"strings"

	"weft/tunnel"
)

// outer is what a vxlan port sets of its tunnels' outer headers. The zero value
// is what a port without these options has.
type outer struct {
	// checksum is on, off, or empty: over IPv6 only, where Linux drops a datagram
	// without one unless told otherwise.
	checksum string
	ttl, tos uint8 // ttl 0: 64, or 1 to a multicast group, as Linux has it
	// inheritTTL and inheritTOS take them from the inner header.
	inheritTTL, inheritTOS bool
	df                     bool
	dev                    string // to reach a multicast group by
	// portBase and portRange are as in tunnel.Params.
	portBase, portRange uint16
}

// outerOptions are the rows of the vxlan port's option table.
var outerOptions = optionTable{
	"udp_csum": {check: oneOf("on", "off")},
	"ttl":      {check: either("inherit", numberIn(1, 255))},
	"tos":      {check: either("inherit", trafficClass)},
	"df":       {check: oneOf("on", "off")},
	"src_port": {check: portRange},
}

// trafficClass checks a TOS byte without ECN bits, which are the inner frame's.
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
	return uint16(a), uint16(z - a + 1), true // at most 65535
}

// makeOuter reads a vxlan port's options, which are checked.
func makeOuter(values map[string]string) outer {
	o := outer{checksum: values["udp_csum"], df: values["df"] == "on", dev: values["dev"]}
	o.inheritTTL, o.inheritTOS = values["ttl"] == "inherit", values["tos"] == "inherit"
	ttl, _ := strconv.ParseUint(values["ttl"], 10, 8)
	tos, _ := strconv.ParseUint(values["tos"], 0, 8)
	o.ttl, o.tos = uint8(ttl), uint8(tos)
	o.portBase, o.portRange, _ = parsePortRange(values["src_port"])
	return o
}

// params are those of a template that the port decides.
func (o outer) params(remote netip.Addr, udpPort uint16) tunnel.Params {
	ttl := o.ttl
	if ttl == 0 && remote.IsMulticast() {
		ttl = 1
	}
	return tunnel.Params{
		UDPPort: udpPort, TTL: ttl, TOS: o.tos, InheritTTL: o.inheritTTL, InheritTOS: o.inheritTOS, DontFragment: o.df && remote.Is4(),
		PortBase: o.portBase, PortRange: o.portRange,
		Checksum: o.checksum == "on" || o.checksum == "" && remote.Is6(),
	}
}

// outers are the settings of all vxlan ports by number. Caller holds change.
func (d *Daemon) outers() map[uint32]outer {
	m := map[uint32]outer{}
	for no, p := range d.ports {
		if p.kind == kindVXLAN {
			m[no] = makeOuter(p.values)
		}
	}
	return m
}

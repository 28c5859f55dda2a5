// SPDX-License-Identifier: Apache-2.0

package ports

import (
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"weft/control/change"
	"weft/control/flowexport"
	"weft/control/usererr"
	"weft/openflow/xlate"
)

// kindIPFIX and kindSFlow are exporters of sampled frames (package flowexport). They are kinds of ports
// because they are added, changed and saved like ports, but flows cannot name them. Their options are
// named after columns of Open vSwitch's tables.
const (
	kindIPFIX = "ipfix"
	kindSFlow = "sflow"
)

// Names of options that the code below reads several times.
const (
	targetsOption, samplingOption = "targets", "sampling"
	setOption                     = "collector_set"
	inputOption, outputOption     = "input", "output"
	tunnelsOption                 = "tunnels"
	virtualOption                 = "virtual_obs_id"
)

// Limits of the exporters' options. Intervals are in seconds, headers in bytes.
const (
	maxTargets = 8
	// leastHeader and maxHeader limit how many bytes of a frame a sample contains. Fewer bytes would
	// cut the frame's headers.
	leastHeader, maxHeader = 128, 1024
	maxInterval            = 86_400 // seconds
	// usualTemplateInterval (seconds) and usualSampling (1 of N frames) are the defaults of Open
	// vSwitch.
	usualTemplateInterval, usualSampling = "600", "400"
)

func init() {
	common := optionTable{targetsOption: {required: true, check: targetWords}, samplingOption: {value: usualSampling, check: numberIn(1, 1<<32-1)}}
	onOff := func(value string) option { return option{value: value, check: oneOf("on", "off")} }
	for kind, own := range map[string]optionTable{
		kindIPFIX: {
			"obs_domain_id": {value: "0", check: numberIn(0, 1<<32-1)}, "obs_point_id": {value: "0", check: numberIn(0, 1<<32-1)},
			"cache_active_timeout": {value: "0", check: numberIn(0, 4200)}, "cache_max_flows": {value: "0", check: numberIn(0, 1<<32-1)},
			setOption: {check: numberIn(0, 1<<32-1)}, "template_interval": {value: usualTemplateInterval, check: numberIn(1, maxInterval)},
			inputOption: onOff("on"), outputOption: onOff("on"), tunnelsOption: onOff("on"), virtualOption: {check: virtualID},
		},
		kindSFlow: {
			"agent": {check: agentWord}, "header": {value: "128", check: numberIn(1, maxHeader)}, "polling": {value: "30", check: numberIn(0, maxInterval)},
		},
	} {
		maps.Copy(own, common)
		portKinds[kind] = portKind{kind: xlate.PortExporter, options: own,
			make: func(c portContext) portDriver { return &exporterPort{number: c.number, exporters: c.exporters} }}
		changeable[kind] = slices.Sorted(maps.Keys(own))
	}
}

func targetWords(value string) string {
	if _, ok := parseTargets(value); !ok {
		return "up to " + strconv.Itoa(maxTargets) + " addresses of collectors, as in 192.0.2.1:4739,[2001:db8::1]:4739"
	}
	return ""
}

func parseTargets(value string) (list []netip.AddrPort, ok bool) {
	for word := range strings.SplitSeq(value, ",") {
		target, err := netip.ParseAddrPort(word)
		if err != nil || target.Port() == 0 || len(list) == maxTargets {
			return nil, false
		}
		list = append(list, target)
	}
	return list, true
}

func virtualID(value string) string {
	if len(value) > 254 {
		return "at most 254 bytes"
	}
	return ""
}

func agentWord(value string) string {
	if _, err := netip.ParseAddr(value); err != nil && (value == "" || len(value) > 15 || strings.ContainsAny(value, "/ ")) {
		return "an address, or the name of a network device"
	}
	return ""
}

// exporterPort is the driver of an exporter. The exporter itself runs in package flowexport.
type exporterPort struct {
	virtualPort
	number    uint32
	exporters *flowexport.Service
}

func (p *exporterPort) status() portStatus {
	if s := p.virtualPort.status(); s.state != StateUp {
		return s
	}
	detail, problem := p.exporters.Status(p.number)
	if problem != "" {
		return portStatus{state: StateUp, detail: problem + "; " + detail}
	}
	return portStatus{state: StateUp, detail: detail}
}

// joinExporters passes the exporters' settings to package flowexport. It stores which frames to
// sample in the PortInfo of each exporter, which look-ups of frames read.
func (ps *Ports) joinExporters(*change.Tx) {
	configs, count := map[uint32]*flowexport.Config{}, map[uint8]int{}
	for _, number := range slices.Sorted(maps.Keys(ps.byNumber)) { // the view lists exporters in this order, too
		p := ps.byNumber[number]
		if p.info.Kind != xlate.PortExporter {
			continue
		}
		trouble := ""
		if count[p.info.Bridge]++; count[p.info.Bridge] > xlate.MaxExporters {
			trouble = "the bridge has more than " + strconv.Itoa(xlate.MaxExporters) + " exporters"
		}
		p.driver.(*exporterPort).setTrouble(trouble)
		configs[number], p.info.Exporter = p.exporter()
	}
	ps.exporters.Set(configs)
}

// exporter returns an exporter's settings: those for package flowexport, and those for the look-ups
// of frames, which select what is sampled. The options are checked already.
func (p *switchPort) exporter() (*flowexport.Config, *xlate.Exporter) {
	number := func(name string) uint64 { n, _ := strconv.ParseUint(p.values[name], 10, 64); return n }
	seconds := func(name string) time.Duration { return time.Duration(number(name)) * time.Second }
	c := &flowexport.Config{Bridge: p.explicit[bridgeOption], SFlow: p.kind == kindSFlow}
	c.Targets, _ = parseTargets(p.values[targetsOption])
	probability := uint32((1<<32 - 1) / number(samplingOption))
	if c.SFlow {
		c.Agent, c.Header, c.Polling = p.values["agent"], int(number("header")), seconds("polling")
		return c, &xlate.Exporter{Arriving: probability, Snap: uint16(c.Header)}
	}
	c.Domain, c.Point = uint32(number("obs_domain_id")), uint32(number("obs_point_id"))
	c.ActiveTimeout, c.MaxFlows = seconds("cache_active_timeout"), int(min(number("cache_max_flows"), flowexport.MaxFlows))
	c.TemplateInterval, c.VirtualID, c.Tunnels = seconds("template_interval"), p.values[virtualOption], p.values[tunnelsOption] == "on"
	info := &xlate.Exporter{Snap: leastHeader}
	if _, c.OfSet = p.explicit[setOption]; c.OfSet {
		info.OfSet, info.Set = true, uint32(number(setOption))
		return c, info
	}
	if p.values[inputOption] == "on" {
		info.Arriving = probability
	}
	if p.values[outputOption] == "on" {
		info.Leaving = probability
	}
	return c, info
}

// checkSets returns an error if two exporters of a bridge have the same collector set ID.
func checkSets(p, o *switchPort) error {
	set, ofSet := p.explicit[setOption]
	if other, too := o.explicit[setOption]; !ofSet || !too || set != other || p.info.Bridge != o.info.Bridge {
		return nil
	}
	return usererr.Errorf("%s=%s: port %s has this set; expected another", setOption, set, o.saved.Name)
}
